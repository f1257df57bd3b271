"""Workloads: fixed for ever, and refused clearly."""

import hashlib
import json

import numpy as np
import pytest

from mis_bench.workload import CANONICAL, MAX_TOKENS, TOKEN_IDS, WorkloadNameError, build_workload

CANONICAL_SHA256 = "5cfbd10a9c1588abddfe4c9a7ad5f5dc2789d390ded8505c99a70fe36943574e"


def test_the_canonical_workload_never_changes() -> None:
    workload = build_workload()
    assert workload.name == CANONICAL == "canonical-2000-500-20"
    assert workload.query.shape == (2000,)
    assert [len(item) for item in workload.items] == [20] * 500
    assert workload.label_token_ids.tolist() == [9454, 2753]
    assert workload.num_tokens == 12_000
    assert workload.sha256 == CANONICAL_SHA256


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


def test_json_holds_the_request_and_a_checksum_that_others_can_verify() -> None:
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


def test_workloads_beyond_the_limit_are_refused_before_they_are_built() -> None:
    with pytest.raises(WorkloadNameError, match=r"1,000,000,000,002,000 tokens; at most 2,000,000"):
        build_workload("huge-2000-1000000000-1000000")
    assert build_workload(f"largest-{MAX_TOKENS - 4}-2-2").num_tokens == MAX_TOKENS
