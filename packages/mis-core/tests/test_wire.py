"""Messages survive the socket bit by bit, and nothing else gets through."""

import dataclasses
import pickle
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from mis_core.checkpoints import Sign, Signs
from mis_core.process.wire import (
    HEADER_BYTES,
    MAX_FRAME_BYTES,
    Cancel,
    Configure,
    Errored,
    Failed,
    Generate,
    Generated,
    MalformedFrame,
    Operate,
    Operated,
    Ready,
    Rejected,
    Score,
    Scored,
    Shutdown,
    decode_for_engine,
    decode_for_front,
    encode_frame,
    payload_size,
)
from mis_core.requests import EngineOutput, GenerateRequest, NewToken, Sampling, ScoreRequest

pytestmark = pytest.mark.quick

IDS = st.integers(0, 2**63 - 1)
TOKENS = st.integers(-1, 2**31 - 1)


def int32(shape: Any) -> st.SearchStrategy[np.ndarray]:
    return arrays.arrays(np.int32, shape, elements=TOKENS)


@st.composite
def requests(draw: st.DrawFn) -> ScoreRequest:
    lengths = draw(st.lists(st.integers(1, 5), min_size=1, max_size=6))
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    query = draw(int32(st.integers(0, 9)))
    return ScoreRequest(
        query=query,
        item_tokens=draw(int32(int(starts[-1]))),
        item_starts=starts,
        context_lens=np.full(len(lengths), len(query), np.int32),
        label_ids=draw(int32((draw(st.sampled_from([1, len(lengths)])), draw(st.integers(1, 4))))),
        apply_softmax=draw(st.booleans()),
        temperature=draw(st.floats(1e-6, 1e6)),
        return_token_logprobs=draw(st.booleans()),
        cache_salt=draw(st.none() | st.text()),
    )


@st.composite
def generations(draw: st.DrawFn) -> GenerateRequest:
    biases = draw(st.integers(0, 4))
    numbers = st.floats(width=32, allow_nan=False)
    sampling = Sampling(
        draw(int32((1, 2))),
        temperature=draw(numbers),
        bias_ids=draw(int32(biases)),
        bias=draw(arrays.arrays(np.float32, biases, elements=numbers)),
        top_k=draw(st.integers(0, 9)),
        presence_penalty=draw(numbers),
    )
    return GenerateRequest(
        prompt=draw(int32(st.integers(1, 9))),
        max_new_tokens=draw(st.integers(1, 9)),
        sampling=sampling,
        end_ids=frozenset(draw(st.lists(st.integers(0, 99), max_size=3))),
        top_tokens=draw(st.integers(0, 20)),
        cache_salt=draw(st.none() | st.text()),
    )


@st.composite
def new_tokens(draw: st.DrawFn) -> NewToken:
    tops = draw(st.integers(0, 3))
    return NewToken(
        token_id=draw(st.integers(0, 9)),
        logprob=draw(st.floats(allow_nan=False)),
        top_ids=draw(int32(tops)),
        top_logprobs=draw(arrays.arrays(np.float32, tops, elements=st.floats(width=32))),
        finish_reason=draw(st.sampled_from([None, "stop", "length"])),
        cached_tokens=draw(st.integers(0, 9)),
    )


@st.composite
def label_logits(draw: st.DrawFn) -> EngineOutput:
    items, labels = draw(st.integers(1, 6)), draw(st.integers(1, 4))
    floats = st.floats(width=32)  # infinities and NaN payloads included
    return EngineOutput(
        logits=draw(arrays.arrays(np.float32, (items, labels), elements=floats)),
        log_sum_exp=draw(st.none() | arrays.arrays(np.float32, items, elements=floats)),
        cached_tokens=draw(st.integers(0, 10_000)),
        timings_ms=draw(st.dictionaries(st.text(), st.floats(allow_nan=False), max_size=3)),
    )


def payload(frame: bytes) -> bytes:
    assert payload_size(frame[:HEADER_BYTES]) == len(frame) - HEADER_BYTES
    return frame[HEADER_BYTES:]


def assert_same_fields(got: Any, want: Any) -> None:
    assert type(got) is type(want)
    for name in want.__dataclass_fields__:
        one, other = getattr(got, name), getattr(want, name)
        if dataclasses.is_dataclass(other):
            assert_same_fields(one, other)
        elif isinstance(other, np.ndarray):
            assert (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes()), name
        else:
            assert one == other, name


@given(id=IDS, request=requests())
def test_request_survives_bit_by_bit(id: int, request: ScoreRequest) -> None:
    message = decode_for_engine(payload(encode_frame(Score(id, request))))
    assert isinstance(message, Score)
    assert message.id == id
    assert_same_fields(message.request, request)


@given(id=IDS, logits=label_logits())
def test_label_logits_survive_bit_by_bit(id: int, logits: EngineOutput) -> None:
    message = decode_for_front(payload(encode_frame(Scored(id, logits))))
    assert isinstance(message, Scored)
    assert message.id == id
    assert_same_fields(message.output, logits)


@given(id=IDS, request=generations())
def test_generations_survive_bit_by_bit(id: int, request: GenerateRequest) -> None:
    message = decode_for_engine(payload(encode_frame(Generate(id, request))))
    assert isinstance(message, Generate)
    assert message.id == id
    assert_same_fields(message.request, request)


@given(told=st.lists(st.tuples(IDS, new_tokens()), min_size=1, max_size=5))
def test_tokens_of_a_step_survive_bit_by_bit(told: list[tuple[int, NewToken]]) -> None:
    message = decode_for_front(payload(encode_frame(Generated.of(told))))
    assert isinstance(message, Generated)
    for (got_number, got), (number, token) in zip(message.tokens(), told, strict=True):
        assert got_number == number
        assert_same_fields(got, token)


@pytest.mark.parametrize(
    "changes",
    [
        {"ids": [1]},
        {"logprobs": [-0.5, -0.5, -0.5]},
        {"finish_reasons": [None]},
        {"finish_reasons": [None, "bored"]},
        {"top_counts": [1, 2]},
        {"top_counts": [3, -1]},
        {"top_ids": ["<i4", [1], bytes(4)]},
        {"top_logprobs": ["<f4", [3], bytes(12)]},
    ],
)
def test_tokens_in_columns_that_do_not_fit_are_refused(changes: dict[str, Any]) -> None:
    tops = np.arange(2, dtype=np.int32)
    told = [(number, NewToken(7, -0.5, tops[:number], tops[:number].astype(np.float32))) for number in (0, 2)]
    content = msgspec.msgpack.decode(payload(encode_frame(Generated.of(told))))
    assert isinstance(decode_for_front(msgspec.msgpack.encode(content)), Generated)
    with pytest.raises(MalformedFrame):
        decode_for_front(msgspec.msgpack.encode(content | changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"prompt": ["<i4", [0], b""]},
        {"max_new_tokens": 0},
        {"top_tokens": 21},
        {"end_ids": ["a"]},
        {"sampling": {"keys": ["<i4", [2, 2], bytes(16)]}},
    ],
)
def test_generations_that_cannot_be_written_are_refused(changes: dict[str, Any]) -> None:
    request = GenerateRequest(np.array([1], np.int32), 1, Sampling(np.zeros((1, 2), np.int32)))
    content = msgspec.msgpack.decode(payload(encode_frame(Generate(1, request))))
    assert isinstance(decode_for_engine(msgspec.msgpack.encode(content)), Generate)
    with pytest.raises(MalformedFrame):
        decode_for_engine(msgspec.msgpack.encode(content | {"request": content["request"] | changes}))


@pytest.mark.parametrize(
    "message",
    [Configure({"model": "m", "context_length": None}), Cancel(7), Operate(3, "start_profile", "folder"), Shutdown()],
)
def test_messages_to_the_engine_survive(message: Any) -> None:
    assert decode_for_engine(payload(encode_frame(message))) == message


@pytest.mark.parametrize(
    "message",
    [
        Ready(vocab_size=8, context_length=16),
        Ready(8, 16, {"devices": "1 x cpu", "tp_size": 1}),
        Ready(8, 16, signs=Signs((Sign("a", "é"),), "b", ("c",), (None, 7))),
        Operated(3, {"steps": 5.0}),
        Failed(message="model.norm.weight is missing."),
        Rejected(id=3, code="too_many_tokens", message="too many", param="items"),
        Errored(id=4),
    ],
)
def test_messages_to_the_front_survive(message: Any) -> None:
    assert decode_for_front(payload(encode_frame(message))) == message


@given(st.binary(max_size=64))
def test_random_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(MalformedFrame, match="does not hold a message"):
        decode_for_engine(data)


@pytest.mark.parametrize(
    "content",
    [
        {"type": "cancel"},
        {"type": "cancel", "id": "seven"},
        {"type": "cancel", "id": 7, "more": 1},
        {"type": "exec", "id": 7},
        {"type": "operate", "id": 7, "action": "explode"},
        {"type": "ready", "vocab_size": 1, "context_length": 1},  # the other direction
        {"id": 7},
        [],
    ],
)
def test_wrong_messages_are_refused(content: Any) -> None:
    with pytest.raises(MalformedFrame, match="does not hold a message"):
        decode_for_engine(msgspec.msgpack.encode(content))


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(MalformedFrame):
        decode_for_engine(b"\x91" * 100_000)


def test_a_pickle_is_refused_and_not_run() -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return (pytest.fail, ("the pickle was run",))

    with pytest.raises(MalformedFrame):
        decode_for_engine(pickle.dumps(Trap()))


def test_a_frame_over_the_limit_is_refused_before_it_is_read() -> None:
    with pytest.raises(MalformedFrame, match=str(MAX_FRAME_BYTES)):
        payload_size((MAX_FRAME_BYTES + 1).to_bytes(HEADER_BYTES, "little"))


def test_a_message_over_the_limit_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mis_core.process.wire.MAX_FRAME_BYTES", 10)
    with pytest.raises(MalformedFrame, match="exceeds the limit of 10"):
        encode_frame(Failed(message="long enough"))


def score_content(**changes: Any) -> dict[str, Any]:
    """Return a score message as it travels, with other fields of its request."""
    request = ScoreRequest(
        query=np.array([1], np.int32),
        item_tokens=np.array([2, 3], np.int32),
        item_starts=np.array([0, 1, 2], np.int32),
        context_lens=np.array([1, 1], np.int32),
        label_ids=np.array([[5, 6]], np.int32),
    )
    content = msgspec.msgpack.decode(payload(encode_frame(Score(1, request))))
    return content | {"request": content["request"] | changes}


def test_a_whole_score_message_is_accepted() -> None:
    message = decode_for_engine(msgspec.msgpack.encode(score_content()))
    assert isinstance(message, Score)
    assert message.request.num_items == 2


def ints(shape: list[int], *values: int) -> list[Any]:
    return ["<i4", shape, np.array(values, np.int32).tobytes()]


@pytest.mark.parametrize(
    "changes",
    [
        {"query": ["<i4", [1], b"\x01"]},
        {"query": ["<i4", [2], bytes(4)]},
        {"query": ["<i4", [1, 1], bytes(4)]},
        {"query": ["<f4", [1], bytes(4)]},
        {"query": ["<i8", [1], bytes(8)]},
        {"query": ["O", [1], bytes(8)]},
        {"query": ["<i4", [-1, -1], bytes(4)]},
        {"query": bytes(4)},
        {"query": 7},
        {"item_starts": ints([0])},
        {"context_lens": ints([3], 1, 1, 1)},
        {"label_ids": ints([1, 0])},
        {"label_ids": ints([2], 5, 6)},
        {"label_ids": ints([3, 2], 1, 2, 3, 4, 5, 6)},
        {"layout": None},
        {"read_lens": ints([1], 1)},
        {"read_lens": ints([2], 1, 9)},
        {"read_at": ints([1], 0)},
        {"read_at": ints([2], 0, 9)},
        {"read_at": ints([2], 0, -1)},
        {"read_lens": ints([2], 2, 1), "read_at": ints([3], 1, 1, 0)},
        {"query_reads": 99},
        {"top_tokens": 21},
        {"sampling": {"keys": ints([1, 2], 1, 2)}},
    ],
)
def test_arrays_that_do_not_fit_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(MalformedFrame):
        decode_for_engine(msgspec.msgpack.encode(score_content(**changes)))


def test_a_request_whose_arrays_do_not_fit_is_not_sent() -> None:
    message = decode_for_engine(msgspec.msgpack.encode(score_content()))
    assert isinstance(message, Score)
    offsets = message.request.item_starts[:2]
    with pytest.raises(ValueError, match="2 items, but 2 offsets"):
        Score(1, dataclasses.replace(message.request, item_starts=offsets))


def test_normalisers_that_do_not_fit_are_refused() -> None:
    logits = EngineOutput(np.zeros((2, 1), np.float32), np.zeros(2, np.float32))
    content = msgspec.msgpack.decode(payload(encode_frame(Scored(1, logits))))
    content["output"]["log_sum_exp"] = ["<f4", [1], bytes(4)]
    with pytest.raises(MalformedFrame, match=r"2 rows, but 1|log_sum_exp"):
        decode_for_front(msgspec.msgpack.encode(content))


@pytest.mark.parametrize("dtype", [np.int64, np.float64, object])
def test_other_types_of_numbers_are_not_sent(dtype: Any) -> None:
    with pytest.raises(TypeError, match="does not travel"):
        encode_frame(Ready(8, 16, {"steps": np.zeros(1, dtype)}))
