"""Workloads: fixed for ever, and refused clearly."""

import hashlib
import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mis_bench.drawing import TOKEN_IDS
from mis_bench.workload import (
    CANONICAL,
    MAX_LABELS,
    MAX_TOKENS,
    PRODUCTION,
    WorkloadNameError,
    build_workload,
)

TASKS = ("rerank", "decisions", "loglikelihoods")
CANONICAL_SHA256 = "5cfbd10a9c1588abddfe4c9a7ad5f5dc2789d390ded8505c99a70fe36943574e"


def test_the_canonical_workload_never_changes() -> None:
    workload = build_workload()
    assert workload.name == CANONICAL == "canonical-2000-500-20"
    assert workload.query.shape == (2000,)
    assert [len(item) for item in workload.items] == [20] * 500
    assert workload.label_token_ids.tolist() == [9454, 2753]
    assert workload.num_tokens == 12_000
    assert workload.sha256 == CANONICAL_SHA256


@pytest.mark.parametrize(
    ("name", "sha256"),
    [
        ("ragged-50-10-6", "264df157a6a00edff276715674f83d20a757e6c8fa7f7fd64b3afe71fa40fc4a"),
        ("text-20-5-4", "fe1143751b49f2cf2e56bad22437639424a79080dac5a506c0d8ea0ce1e4c7cb"),
        ("rerank-50-100-200", "985178df4698a92ce17fde199ad752c9b2911c40e64b932092715a53c0f4963c"),
        ("decisions-2000-64-12", "1d69151fb9f0e99fad202dc7899e4d68b33cf66a353d30d4c64267e8435883e5"),
        ("systemone-3000-50-8", "e1d6233f261cce0f843b59b0edb3ac696c0bb5a1ecc1c40ea104fe421eaaf216"),
        ("systemone-300-1-8@255", "92116705b9f7ea89f99bfbca1b89c485ce5c1a7cbe4e6595bec219369e3d223d"),
        ("loglikelihoods-200-1000-20", "b1d059dc67e57b1ea586e34c62267865edfe02a35d2b4f1b882f3b31d85396f1"),
        ("track_low@4", "ed39fb107444f6a4771c4b757bbf1fe8f80e0d9458cc4fed95b73022049542e9"),
    ],
)
def test_other_kinds_never_change_either(name: str, sha256: str) -> None:
    assert build_workload(name).sha256 == sha256


def test_the_name_decides_the_tokens() -> None:
    first, again, other = (build_workload(name) for name in ("probe-50-3-4", "probe-50-3-4", "other-50-3-4"))
    assert first.sha256 == again.sha256 != other.sha256
    assert not np.array_equal(first.query, other.query)


def test_tokens_are_ordinary_and_items_differ() -> None:
    workload = build_workload()
    tokens = np.concatenate([workload.query, *workload.items])
    assert tokens.dtype == np.int32
    assert TOKEN_IDS.start <= tokens.min() < tokens.max() < TOKEN_IDS.stop
    assert len(np.unique(np.stack(workload.items), axis=0)) == len(workload.items)


def test_json_holds_the_request_and_a_verifiable_checksum() -> None:
    document = json.loads(build_workload("probe-5-2-3").to_json())
    assert set(document["request"]) == {"query", "items", "label_token_ids"}
    text = json.dumps(document["request"], sort_keys=True, separators=(",", ":"))
    assert hashlib.sha256(text.encode()).hexdigest() == document["sha256"]


@pytest.mark.parametrize(
    "name",
    ["", "canonical", "canonical-2000-500", "2000-500-20", "canonical-0-5-5", "canonical-5-05-5", "canonical-5-5-5\n",
     "Canonical-5-5-5", "canonical-5--5-5", "canonical-5-5-5-5", "canonical-5-5-x"],
)  # fmt: skip
def test_other_names_are_refused_with_the_form_that_is_wanted(name: str) -> None:
    with pytest.raises(WorkloadNameError, match=r"Write KIND-Q-N-L .* such as canonical-2000-500-20"):
        build_workload(name)


def test_long_names_are_not_echoed() -> None:
    with pytest.raises(WorkloadNameError) as caught:
        build_workload("x" * 10_000)
    assert len(str(caught.value)) < 300


def test_workloads_beyond_the_limit_are_refused_before_building() -> None:
    with pytest.raises(WorkloadNameError, match=r"1,000,000,000,002,000 tokens; at most 2,000,000"):
        build_workload("huge-2000-1000000000-1000000")
    assert build_workload(f"largest-{MAX_TOKENS - 4}-2-2").num_tokens == MAX_TOKENS


SIZES = st.tuples(st.integers(1, 60), st.integers(1, 60), st.integers(1, 12))


@given(SIZES)
def test_ragged_lengths_have_the_mean_that_the_name_says(sizes: tuple[int, int, int]) -> None:
    query, items, mean = sizes
    workload = build_workload(f"ragged-{query}-{items}-{mean}")
    lengths = [len(item) for item in workload.items]
    assert len(workload.query) == query
    assert len(lengths) == items
    assert sum(lengths) == items * mean
    assert 1 <= min(lengths) <= max(lengths) <= 2 * mean - 1


def test_ragged_lengths_do_vary() -> None:
    assert len({len(item) for item in build_workload("ragged-10-50-20").items}) > 10


@given(SIZES)
def test_texts_have_the_words_in_the_name_and_items_can_follow(sizes: tuple[int, int, int]) -> None:
    query, items, length = sizes
    workload = build_workload(f"text-{query}-{items}-{length}")
    assert isinstance(workload.query, str)
    for item in workload.items:
        assert isinstance(item, str)
        assert len((workload.query + item).split()) == query + length
    assert workload.label_token_ids.tolist() == [9454, 2753]


def test_tasks_ask_what_their_clients_ask() -> None:
    rerank, decisions, prompts = (build_workload(f"{kind}-4-2-3").request for kind in TASKS)
    assert set(rerank) == {"query", "documents"}
    assert [len(text.split()) for text in (rerank["query"], *rerank["documents"])] == [4, 3, 3]
    predicates = [{"type": "predicate", "instructions": each["instructions"]} for each in decisions["questions"]]
    assert decisions == {"input": decisions["input"], "questions": predicates}
    assert [len(text.split()) for text in (decisions["input"], *(each["instructions"] for each in predicates))] == [
        4,
        3,
        3,
    ]
    workload = build_workload("loglikelihoods-4-2-3")
    shared = [[*workload.query, *item] for item in workload.items]
    assert prompts == {"prompt": shared, "max_tokens": 0, "echo": True, "logprobs": 1}


def test_questions_of_system_one_are_of_all_kinds() -> None:
    body = build_workload("systemone-40-50-8").request
    kinds = Counter(question["type"] for question in body["questions"].values())
    assert kinds == {"choice": 20, "noul": 20, "score": 10}
    assert len(body["state"].split()) == 40
    for question in body["questions"].values():
        assert len(question["instructions"].split()) == 8
        assert len(question.get("criteria", "four")) == 4
    many = build_workload("systemone-40-6-8@255").request["questions"].values()
    assert [(question["type"], len(question["criteria"])) for question in many] == [("choice", 255)] * 6


@pytest.mark.parametrize(
    ("name", "message"),
    [("systemone-3-1-1@256", "has 256 options; at most 255"), ("systemone-3-1-1@1", "needs at least 2 options"),
     ("systemone-3-9999-1@255", "tokens; at most 2,000,000"), ("decisions-3-1-1@3", "only scores have labels")],
)  # fmt: skip
def test_questions_that_nobody_may_ask_are_refused(name: str, message: str) -> None:
    with pytest.raises(WorkloadNameError, match=message):
        build_workload(name)


@pytest.mark.parametrize("kind", TASKS)
def test_tasks_have_a_number_for_each_item_and_no_labels(kind: str) -> None:
    workload = build_workload(f"{kind}-4-2-3").within(2048)
    assert (workload.task, workload.num_items, workload.num_labels, workload.num_tokens) == (kind, 2, 1, 10)
    with pytest.raises(WorkloadNameError, match="only scores have labels; leave out @8"):
        build_workload(f"{kind}-4-2-3@8")


def test_words_vary() -> None:
    assert len(set(str(build_workload("text-1000-1-1").query).split())) > 500


@pytest.mark.parametrize("name", PRODUCTION)
def test_workloads_of_production_have_their_published_sizes(name: str) -> None:
    published = {
        "track_low": (183, 16, 26), "track_mean": (420, 96, 55), "track_high": (483, 128, 63),
        "home_low": (155, 8, 30), "home_mean": (275, 34, 50), "home_high": (2375, 256, 70),
    }  # fmt: skip
    workload = build_workload(name)
    assert (len(workload.query), len(workload.items), len(workload.items[0])) == published[name]
    assert len(PRODUCTION) == len(published)


@given(st.integers(1, MAX_LABELS))
def test_labels_differ_and_more_begin_with_the_fewer(count: int) -> None:
    few, all_of_them = (build_workload(f"probe-3-1-1@{number}") for number in (count, MAX_LABELS))
    ids = few.label_token_ids.tolist()
    assert ids == all_of_them.label_token_ids.tolist()[:count]
    assert len(set(ids)) == count


def test_labels_change_nothing_else_and_two_are_the_default() -> None:
    plain, eight = build_workload(), build_workload(f"{CANONICAL}@8")
    assert np.array_equal(plain.query, eight.query)
    assert build_workload(f"{CANONICAL}@2").sha256 == plain.sha256
    assert eight.label_token_ids[:2].tolist() == [9454, 2753]


@pytest.mark.parametrize("name", ["probe-3-1-1@", "probe-3-1-1@0", "probe-3-1-1@two", "probe-3-1-1@1@2"])
def test_labels_that_are_no_number_are_refused(name: str) -> None:
    with pytest.raises(WorkloadNameError, match="for 8 labels"):
        build_workload(name)


def test_too_many_labels_are_refused() -> None:
    with pytest.raises(WorkloadNameError, match=r"1,025 labels; at most 1,024"):
        build_workload("probe-3-1-1@1025")


@pytest.mark.parametrize("kind", ["probe", "ragged", "text", "rerank", "decisions", "systemone", "loglikelihoods"])
@given(number=st.integers(1, 1000))
@settings(max_examples=20)
def test_another_workload_has_equal_sizes_and_nothing_in_common(kind: str, number: int) -> None:
    first = build_workload(f"{kind}-6-11-3")
    other = first.another(number)
    assert np.any(first.query != other.query)
    assert first.query[0] != other.query[0]  # not even a prefix to keep in a cache
    assert len(other.items) == len(first.items)
    assert not {str(item) for item in first.items} & {str(item) for item in other.items}
    if not isinstance(first.query, str):
        assert [len(item) for item in other.items] == [len(item) for item in first.items]


@given(number=st.integers(0, 5000), vocab_size=st.integers(2, 3000))
def test_another_workload_stays_within_its_vocabulary(number: int, vocab_size: int) -> None:
    other = build_workload("ragged-6-5-3").within(vocab_size).another(number)
    ids = np.concatenate([other.query, *other.items, other.label_token_ids])
    assert 0 <= ids.min() <= ids.max() < vocab_size


def test_words_of_names_that_are_numbers_without_end_are_refused() -> None:
    with pytest.raises(WorkloadNameError, match="KIND-Q-N-L"):
        build_workload(f"probe-{'1' * 5000}-1-1")
