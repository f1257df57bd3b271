"""Traces: drawn from names, written, read back, refused clearly."""

import json
from collections import Counter
from itertools import islice, repeat
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from mis_bench.cli import main
from mis_bench.workload import WorkloadNameError, build_workload
from mis_bench.workloads.traces import MAX_ARRIVALS, Trace, TraceError, arriving, build_trace, poisson

LINE = {"arrival_s": 0.5, "request": {"query": [1, 2], "items": [[3]], "label_token_ids": [4]}}


def test_a_trace_never_changes() -> None:
    assert build_trace("mixed:4:20").sha256 == "f54504fac70b08fad56c0838fd76db84f22f593abe97eed9ae7fb882dc4d9654"


def test_mixed_loads_have_their_weights_and_rate() -> None:
    arrivals = list(islice(poisson("mixed", 8.0), 1000))
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


def test_requests_of_ones_own_arrive_as_a_poisson_process_that_a_seed_decides() -> None:
    first, again, other = (arriving(repeat(build_workload("probe-2-1-1")), 50, total=400, seed=n) for n in (1, 1, 2))
    times = [due for due, _ in first]
    assert times == [due for due, _ in again] != [due for due, _ in other]
    gaps = np.diff([0, *times])
    assert abs(np.mean(gaps) - 1 / 50) < 0.003
    assert abs(np.std(gaps) - 1 / 50) < 0.005


def test_seeds_differ_and_rates_only_stretch() -> None:
    slow, fast, other = (build_trace(name) for name in ("probe-5-2-3:1:9", "probe-5-2-3:2:9", "probe-5-2-3:1:9:7"))
    times = [[arrival.arrival_s for arrival in trace.arrivals] for trace in (slow, fast, other)]
    assert times[0] == pytest.approx([2 * time for time in times[1]], abs=1e-5)
    assert times[0] != times[2]


@settings(max_examples=25)
@given(rate=st.floats(0.01, 1000), seed=st.integers(0, 99), kind=st.sampled_from(["probe", "ragged", "text"]))
def test_what_is_written_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, rate: float, seed: int, kind: str
) -> None:
    trace = Trace("drawn", tuple(islice(poisson(f"{kind}-5-3-4@3", rate, seed=seed), 4)))
    path = tmp_path_factory.mktemp("trace") / "trace.jsonl"
    path.write_text(trace.to_jsonl())
    again = Trace.read(path)
    assert again.sha256 == trace.sha256
    assert again.to_jsonl() == trace.to_jsonl()
    times = [arrival.arrival_s for arrival in again.arrivals]
    assert times == sorted(times)


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


def test_a_recording_needs_no_names_and_may_have_empty_lines(tmp_path: Path) -> None:
    path = tmp_path / "recorded.jsonl"
    path.write_text(f"{json.dumps(LINE)}\n\n{json.dumps(LINE | {'arrival_s': 2})}\n")
    trace = Trace.read(path)
    assert [arrival.arrival_s for arrival in trace.arrivals] == [0.5, 2.0]
    assert trace.arrivals[0].workload.request == LINE["request"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line: Invalid JSON"),
        (LINE | {"arrival_s": -1}, "arrival_s: Input should be greater than or equal to 0"),
        (LINE | {"arrival_s": "soon"}, "arrival_s: Input should be a valid number"),
        (LINE | {"priority": 1}, "priority: Extra inputs are not permitted"),
        ({"arrival_s": 1.0}, "request: Field required"),
        (LINE | {"request": {"query": "a", "items": [[1]], "label_token_ids": [1]}}, "both be texts or both"),
        (LINE | {"request": {"query": [1], "items": [], "label_token_ids": [1]}}, "request.items"),
        (LINE | {"request": {"query": [1], "items": [[1]], "label_token_ids": [-1]}}, "label_token_ids.0"),
        (LINE | {"arrival_s": 0.25}, "0.25 is before the line above it"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, line: dict | str, message: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(f"{json.dumps(LINE)}\n{line if isinstance(line, str) else json.dumps(line)}\n")
    with pytest.raises(TraceError, match=r"bad.jsonl:2: ") as caught:
        Trace.read(path)
    assert message in str(caught.value)


def test_a_file_that_is_absent_or_empty_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").touch()
    for name, message in (("absent.jsonl", "No such file"), ("empty.jsonl", "no requests")):
        with pytest.raises(TraceError, match=message):
            Trace.read(tmp_path / name)


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


def test_the_command_prints_and_stores_traces(tmp_path: Path) -> None:
    runner, path = CliRunner(), tmp_path / "trace.jsonl"
    printed = runner.invoke(main, ["workload", "probe-5-2-3:1:3"])
    requests = [json.loads(line)["request"] for line in printed.stdout.splitlines()]
    assert requests == [arrival.workload.request for arrival in build_trace("probe-5-2-3:1:3").arrivals]
    assert requests[0] == build_workload("probe-5-2-3").request
    stored = runner.invoke(main, ["workload", "probe-5-2-3:1:3", "--output", str(path)])
    assert "3 requests in" in stored.stdout
    assert Trace.read(path).sha256 in stored.stdout
    wrong = runner.invoke(main, ["workload", "probe:1"])
    assert wrong.exit_code == 2
    assert "LOAD:RATE:COUNT" in wrong.stderr
