"""How a request's next token is drawn: fields, keys, and what is refused."""

import hashlib
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mis_core.errors import RequestError
from mis_core.requests import MAX_BIASES, Sampling
from mis_core.tasks.fields.body import read_body
from mis_core.tasks.text.bodies import MAX_DRAWS, MAX_STOP_IDS, AnswerBody, CompletionBody
from mis_core.tasks.text.sampling import Stops, sampling_keys, sampling_of, stops_of

VOCAB = 1000
seeds = st.integers(-(2**63), 2**63 - 1)


def read(*, draws: int = 2, vocab_size: int = VOCAB, **fields: object) -> Sampling:
    return sampling_of(read_body(AnswerBody, fields), draws, vocab_size)


def stops(**fields: object) -> Stops:
    return stops_of(read_body(AnswerBody, fields), VOCAB)


def test_without_fields_tokens_come_from_the_raw_distribution() -> None:
    sampling = read()
    assert (sampling.temperature, sampling.top_p, sampling.bias_ids.size, sampling.bias.size) == (1, 1, 0, 0)
    assert sampling.keys.shape == (2, 2)
    assert sampling.keys.dtype == np.int32


def test_null_is_as_good_as_missing() -> None:
    fields = dict.fromkeys(AnswerBody.__struct_fields__)
    sampling = read(**fields)
    assert (sampling.temperature, sampling.top_p, sampling.bias_ids.size) == (1, 1, 0)
    assert (sampling.top_k, sampling.min_p, sampling.penalises) == (0, 0, False)
    assert (read_body(AnswerBody, fields).n, stops(**fields)) == (1, Stops())


def test_fields_arrive() -> None:
    sampling = read(temperature=0.5, top_p=0.9, logit_bias={"7": -100, "3": 1.5, 5: np.float32(2)})
    assert (sampling.temperature, sampling.top_p) == (0.5, 0.9)
    assert sampling.bias_ids.tolist() == [7, 3, 5]
    assert sampling.bias.tolist() == [-100, 1.5, 2]
    assert (sampling.bias_ids.dtype, sampling.bias.dtype) == (np.int32, np.float32)


@pytest.mark.parametrize("fields", [{"temperature": 0}, {"temperature": 1e-320}, {"top_p": 0}, {"top_p": 1 / VOCAB}])
def test_what_leaves_one_token_is_temperature_zero(fields: dict[str, float]) -> None:
    sampling = read(**fields)
    assert (sampling.temperature, sampling.top_p) == (0, 1)


@given(seed=seeds, draw=st.integers(0, 20), more=st.integers(0, 20))
def test_a_key_is_the_documented_hash_of_seed_and_draw_alone(seed: int, draw: int, more: int) -> None:
    digest = hashlib.blake2b(struct.pack("<qQ", seed, draw), digest_size=8).digest()
    assert tuple(sampling_keys(seed, draw + 1 + more)[draw]) == struct.unpack("<ii", digest)


def test_keys_of_draws_and_seeds_differ() -> None:
    keys = np.concatenate([sampling_keys(seed, MAX_DRAWS) for seed in range(-20, 20)])
    assert len(np.unique(keys, axis=0)) == len(keys)


def test_without_a_seed_no_key_comes_twice() -> None:
    keys = np.concatenate([read().keys for _ in range(50)])
    assert len(np.unique(keys, axis=0)) == len(keys)


REFUSED = [
    *[("temperature", value) for value in (-0.1, 2.1, float("nan"), float("inf"), True, "1", [1], 10**400)],
    *[("top_p", value) for value in (-0.1, 1.1, float("nan"), False, "1")],
    *[("seed", value) for value in (1.5, True, "1", 2**63, -(2**63) - 1, [1])],
    *[
        ("logit_bias", value)
        for value in ([], "a", 1, {"a": 1}, {"1.0": 1}, {"-1": 1}, {"+1": 1}, {"1_0": 1}, {" 1": 1})
    ],
    *[("logit_bias", {"1": value}) for value in (101, -100.5, None, "1", True, float("nan"), 10**400)],
    *[("logit_bias", {name: 1}) for name in ("", "9" * 5000, "\u0661", True, -1, None)],
    ("logit_bias", {"1": 1, "01": 2}),
    *[("top_k", value) for value in (-2, 1.0, True, "1")],
    *[("min_p", value) for value in (-0.1, 1.1, "a")],
    *[(name, value) for name in ("presence_penalty", "frequency_penalty") for value in (-2.1, 3, "a", True)],
    ("logit_bias", {str(token): 1 for token in range(MAX_BIASES + 1)}),
]


@pytest.mark.parametrize(("name", "value"), REFUSED)
def test_a_bad_value_is_refused_by_name(name: str, value: object) -> None:
    refusal = refused(lambda: read(**{name: value}, vocab_size=10**6))
    assert (refusal.code, refusal.param) == (f"invalid_{name}", name)
    assert name in refusal.message


@pytest.mark.parametrize("token", [str(VOCAB), VOCAB, "9" * 18, 10**400], ids=["text", "number", "long", "longer"])
def test_a_bias_outside_the_vocabulary_is_refused(token: object) -> None:
    refusal = refused(lambda: read(logit_bias={token: 1}))
    assert (refusal.code, refusal.param) == ("token_id_exceeds_vocab", "logit_bias")


@pytest.mark.parametrize("value", [0, -1, MAX_DRAWS + 1, 1.0, True, "1"])
def test_how_many_draws_is_a_bounded_whole_number(value: object) -> None:
    assert refused(lambda: read_body(CompletionBody, {"prompt": "a", "best_of": value})).code == "invalid_best_of"
    assert read_body(AnswerBody, {"n": MAX_DRAWS}).n == MAX_DRAWS


@pytest.mark.parametrize("value", [1, {"a": 1}, [1], [None], "", [""], ["a"] * 17, "a" * 257, "\ud83d", ["\ud83d"]])
def test_bad_stop_texts_are_refused(value: object) -> None:
    refusal = refused(lambda: stops(stop=value))
    assert (refusal.code, refusal.param) == ("invalid_stop", "stop")


def test_stops_arrive() -> None:
    assert stops(stop="ab") == Stops(("ab",))
    fields = {"stop": ["ab", "c"], "stop_token_ids": [3, 4, 3], "ignore_eos": True}
    assert stops(**fields) == Stops(("ab", "c"), frozenset([3, 4]), ignore_eos=True)
    assert stops(stop_token_ids=[]) == Stops()


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("stop_token_ids", 3, "invalid_stop_token_ids"),
        ("stop_token_ids", [1] * (MAX_STOP_IDS + 1), "invalid_stop_token_ids"),
        ("stop_token_ids", ["a"], "invalid_token_id_type"),
        ("stop_token_ids", [VOCAB], "token_id_exceeds_vocab"),
        ("ignore_eos", 1, "invalid_ignore_eos"),
    ],
)
def test_bad_stops_are_refused_by_name(name: str, value: object, code: str) -> None:
    refusal = refused(lambda: stops(**{name: value}))
    assert (refusal.code, refusal.param) == (code, name)


def refused(read) -> RequestError:
    with pytest.raises(RequestError) as caught:
        read()
    assert len(caught.value.message) < 300
    return caught.value
