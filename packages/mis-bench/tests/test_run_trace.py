"""`mis-bench run --trace`: loads with arrival times, drawn or recorded."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from mis_bench.artifacts.base import read_artifact
from mis_bench.artifacts.gates import Gates
from mis_bench.artifacts.trace import TraceResult, TraceRow
from mis_bench.checking.folders import check_path
from mis_bench.cli import main
from mis_bench.measure import Call
from mis_bench.targets.base import CallFailed
from mis_bench.workload import Workload, build_workload
from mis_bench.workloads.traces import build_trace

MIXED = "mixed:20000:12"


@pytest.fixture
def run(fakes: Any, tmp_path: Path) -> Callable[..., Result]:
    return lambda *more: CliRunner().invoke(main, ["run", "--output", str(tmp_path / "run"), *more])


def result_of(folder: Path) -> TraceResult:
    found = read_artifact(folder / "trace.json")
    assert isinstance(found, TraceResult)
    return found


def faults(folder: Path) -> list[str]:
    return [fault for each in check_path(folder) for fault in each.faults]


def test_a_mixed_load_has_a_row_for_every_size_and_one_for_all(run: Any, fakes: Any, tmp_path: Path) -> None:
    done = run("--trace", MIXED, "--warmup-runs", "2")
    assert done.exit_code == 0, done.output
    result = result_of(tmp_path / "run")
    assert [row.name for row in result.rows] == ["3 items", "30 items", "500 items", "all"]
    assert result.forgot
    *sizes, everything = result.rows
    assert everything.num_requests == sum(row.num_requests for row in sizes) == result.trace.num_requests == 12
    assert everything.total_items == sum(row.num_items * row.num_requests for row in sizes if row.num_items)
    assert result.trace.sha256 == build_trace(MIXED).sha256
    assert (result.success, result.timed_compilations, result.warmup_runs) == (True, 0, 6)
    asked = [each.query.tobytes() for each in fakes.opened[0].calls]
    assert len(asked) == len(set(asked)) == 18  # no warm-up knows a query of the trace
    assert fakes.opened[0].forgotten == 1
    assert "500 items" in done.stdout
    assert faults(tmp_path / "run") == []


def test_a_recording_is_measured_and_folded_into_the_vocabulary(run: Any, fakes: Any, tmp_path: Path) -> None:
    path = tmp_path / "recorded.jsonl"
    path.write_text(build_trace("probe-9-3-4:20000:5").to_jsonl())
    assert run("--trace", str(path), "--vocab-size", "300").exit_code == 0
    result = result_of(tmp_path / "run")
    assert (result.trace.name, result.trace.vocab_size, result.trace.is_recorded) == ("recorded.jsonl", 300, True)
    assert [row.name for row in result.rows] == ["3 items", "all"]
    assert max(int(item.max()) for call in fakes.opened[0].calls for item in call.items) < 300
    assert faults(tmp_path / "run") == []


def test_failures_are_counted_where_they_occur_and_fail(run: Any, fakes: Any, tmp_path: Path) -> None:
    def before(_: int, workload: Workload) -> None:
        if workload.num_items == 500:
            raise CallFailed("timeout", "No answer within 1 s.")

    fakes.prepare = lambda target: setattr(target, "before", before)
    assert run("--trace", MIXED).exit_code == 1
    result = result_of(tmp_path / "run")
    counts = {row.name: row.failure_reason_counts for row in result.rows}
    number = result.rows[2].num_requests
    assert counts == {"3 items": {}, "30 items": {}, "500 items": {"timeout": number}, "all": {"timeout": number}}
    assert not result.success
    assert faults(tmp_path / "run") == []


@pytest.mark.parametrize(
    ("flag", "limit", "rows"),
    [
        ("--max-p99-ms", "1e-6", ["3 items", "30 items", "500 items"]),
        ("--min-items-per-second", "1e12", ["all"]),
    ],
)
def test_latency_gates_hold_for_sizes_and_throughput_for_all(
    run: Any, tmp_path: Path, flag: str, limit: str, rows: list[str]
) -> None:
    done = run("--trace", MIXED, flag, limit)
    assert done.exit_code == 1
    result = result_of(tmp_path / "run")
    assert [each.row for each in result.gates_missed] == rows
    assert not result.success
    assert f"Gate missed: {rows[0]}: " in done.stderr
    assert faults(tmp_path / "run") == []


def test_a_size_without_an_answer_misses_its_gates() -> None:
    row = TraceRow.of([Call(build_workload("probe-9-3-4"), 0, 1, None, "timeout")], 3, 1.0)
    assert [each.measured for each in row.missed(Gates(max_p99_ms=5, min_items_per_second=1))] == [None]


PLANTED: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "checksum": (lambda f: f["trace"].update(sha256="0" * 64), "trace.sha256"),
    "no such load": (lambda f: f["trace"].update(name="x"), "is not a trace"),
    "requests": (lambda f: f["rows"][0].update(num_requests=99), "num_requests"),
    "items": (lambda f: f["rows"][0].update(total_items=1), "total_items"),
    "throughput": (lambda f: f["rows"][1].update(throughput_ips=1), "throughput_ips"),
    "a size lost": (lambda f: f["rows"].pop(0), "num_requests"),
    "no sum": (lambda f: f["rows"].pop(), "rows must"),
    "success": (lambda f: f.update(success=False), "success is False"),
    "latency": (lambda f: f["rows"][0]["latency"].update(p50_ms=9e9, p95_ms=9e9, p99_ms=9e9), "but the calls make it"),
    "percentiles": (lambda f: f["rows"][0]["latency"].update(p50_ms=9e9), "above"),
    "no latency": (lambda f: f["rows"][0].update(latency=None), "latency must be given"),
    "gates": (lambda f: f.update(gates={"max_p99_ms": 1e-9}), "gates_missed"),
    "warm-ups": (lambda f: f.update(warmup_runs=1), "warmup"),
    "ended before it began": (lambda f: f.update(finished="2001-01-01T00:00:00Z"), "finished is"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_planted_faults_are_found(run: Any, tmp_path: Path, name: str) -> None:
    assert run("--trace", MIXED).exit_code == 0
    path = tmp_path / "run" / "trace.json"
    fields = json.loads(path.read_text())
    plant, sentence = PLANTED[name]
    plant(fields)
    path.write_text(json.dumps(fields))
    assert sentence in "\n".join(faults(tmp_path / "run"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--trace", "nonsense"], "LOAD:RATE:COUNT"),
        (["--trace", "no/such.jsonl"], "LOAD:RATE:COUNT"),
        (["--trace", MIXED, "--workload", "probe-9-3-4"], "--trace"),
        (["--trace", MIXED, "--rate", "3"], "--trace"),
        (["--trace", MIXED, "--runs", "3"], "--trace"),
        (["--trace", MIXED, "--model", "a", "--model", "b"], "one --model"),
    ],
)
def test_mistakes_are_one_clear_message(run: Any, fakes: Any, arguments: list[str], message: str) -> None:
    done = run(*arguments)
    assert done.exit_code == 2
    assert message in " ".join(done.stderr.split())
    assert not fakes.opened


def test_a_broken_recording_names_its_line(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text("{}\n")
    done = run("--trace", str(path))
    assert done.exit_code == 2
    assert "bad.jsonl:1" in done.stderr


def test_a_report_shows_the_rows_and_the_gates_missed(run: Any, tmp_path: Path) -> None:
    assert run("--trace", MIXED, "--max-p99-ms", "1e-6").exit_code == 1
    page = tmp_path / "report.html"
    done = CliRunner().invoke(main, ["report", str(tmp_path / "run"), "--output", str(page)])
    assert done.exit_code == 0, done.output
    assert all(f"<td>{name}</td>" in page.read_text() for name in ("3 items", "500 items", "all"))
    assert "Gate missed: 500 items: max_p99_ms is 1e-06" in page.read_text()


def test_a_target_that_knows_no_way_to_forget_is_measured_and_marked(run: Any, fakes: Any, tmp_path: Path) -> None:
    def forget() -> None:
        raise CallFailed("rejected", "It knows no way to forget.")

    fakes.prepare = lambda target: setattr(target, "forget", forget)
    done = run("--trace", MIXED)
    assert done.exit_code == 0
    assert not result_of(tmp_path / "run").forgot
    assert "knows no way to forget" in done.stderr


def test_a_target_that_cannot_forget_is_one_sentence(run: Any, fakes: Any) -> None:
    def forget() -> None:
        raise CallFailed("http_error", "403 from /flush_cache.")

    fakes.prepare = lambda target: setattr(target, "forget", forget)
    done = run("--trace", MIXED)
    assert (done.exit_code, done.stderr.strip().splitlines()[-1]) == (1, "Error: 403 from /flush_cache.")
