"""Traces: drawn from names, refused clearly."""

import json
from collections import Counter
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from mis_bench.traces import MAX_ARRIVALS, Trace, arrival_times, build_trace
from mis_bench.workload import WorkloadNameError


def test_a_trace_never_changes() -> None:
    assert build_trace("mixed:4:20").sha256 == "f54504fac70b08fad56c0838fd76db84f22f593abe97eed9ae7fb882dc4d9654"


def test_mixed_loads_have_their_weights_and_rate() -> None:
    arrivals = build_trace("mixed:8:1000").arrivals
    sizes = Counter(arrival.workload.num_items for arrival in arrivals)
    assert set(sizes) == {3, 30, 500}
    assert sizes[3] == pytest.approx(400, abs=50)
    assert sizes[30] == pytest.approx(400, abs=50)
    assert {len(arrival.workload.query) for arrival in arrivals} == {2000}
    gaps = np.diff([0.0, *(arrival.arrival_s for arrival in arrivals)])
    assert gaps.mean() == pytest.approx(1 / 8, rel=0.1)
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.1)  # as of an exponential distribution


def test_no_two_requests_share_a_query() -> None:
    arrivals = build_trace("mixed:4:60").arrivals
    assert len({bytes(np.asarray(arrival.workload.query)) for arrival in arrivals}) == 60


def test_arrival_times_are_a_poisson_process_fixed_by_a_name() -> None:
    first, again, other = (list(islice(arrival_times(name, 50), 400)) for name in ("1", "1", "2"))
    assert first == again != other
    gaps = np.diff([0, *first])
    assert abs(np.mean(gaps) - 1 / 50) < 0.003
    assert abs(np.std(gaps) - 1 / 50) < 0.005


def test_seeds_differ_and_rates_only_stretch() -> None:
    slow, fast, other = (build_trace(name) for name in ("probe-5-2-3:1:9", "probe-5-2-3:2:9", "probe-5-2-3:1:9:7"))
    times = [[arrival.arrival_s for arrival in trace.arrivals] for trace in (slow, fast, other)]
    assert times[0] == pytest.approx([2 * time for time in times[1]], abs=1e-5)
    assert times[0] != times[2]


def test_the_checksum_knows_times_and_requests_but_not_names() -> None:
    (arrival,) = build_trace("probe-5-2-3:1:1").arrivals
    changed = {
        "same": arrival,
        "later": arrival._replace(arrival_s=arrival.arrival_s + 1e-6),
        "other": arrival._replace(workload=arrival.workload.another(1)),
    }
    sums = {name: Trace(name, (each,)).sha256 for name, each in changed.items()}
    assert sums["same"] == Trace("otherwise", (arrival,)).sha256
    assert len(set(sums.values())) == 3


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mixed", "LOAD:RATE:COUNT"),
        ("mixed:4", "LOAD:RATE:COUNT"),
        ("mixed:-4:10", "LOAD:RATE:COUNT"),
        ("mixed:0:10", "rate must be above 0"),
        ("mixed:4:0", "LOAD:RATE:COUNT"),
        (f"mixed:4:{MAX_ARRIVALS + 1}", "50,001 requests; at most 50,000"),
        ("nonsense:4:10", "KIND-Q-N-L"),
    ],
)
def test_wrong_names_are_refused_with_the_form_that_is_wanted(name: str, message: str) -> None:
    with pytest.raises(WorkloadNameError, match=message):
        build_trace(name)


LINES = (
    {"id": 1, "state": "A text.", "questions": {"urgent": {"type": "noul", "instructions": "Is it?"}}},
    {"state": {"b": [1]}, "questions": {"a": {"type": "noul", "instructions": {"x": 1}}, "b": {"type": "noul"}}},
)


def test_recorded_requests_are_sent_as_they_were(tmp_path: Path) -> None:
    file = tmp_path / "requests.jsonl"
    file.write_text("\n".join(map(json.dumps, LINES)))
    first, second = build_trace(f"systemone:{file}").arrivals
    assert first.arrival_s is second.arrival_s is None
    assert first.workload.request == {"state": "A text.", "questions": {"q0": LINES[0]["questions"]["urgent"]}}
    assert second.workload.request["state"] == '{"b":[1]}'
    assert list(second.workload.request["questions"].values()) == list(LINES[1]["questions"].values())
    assert second.workload.num_items == 2
    assert first.workload.another(3).request["questions"]["q0"]["instructions"] == "3 Is it?"


@pytest.mark.parametrize(
    ("text", "message"),
    [("", "must have 1 to 50,000 lines"), ('{"state": "a"}', "requests.jsonl:1: questions: Field required"),
     ('{"state": "a", "questions": {}}', "requests.jsonl:1: questions: "),
     ("{", "requests.jsonl:1: line: Invalid JSON")],
)  # fmt: skip
def test_a_file_of_something_else_is_refused(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "requests.jsonl"
    file.write_text(text)
    with pytest.raises(WorkloadNameError, match=message):
        build_trace(f"systemone:{file}")
