"""Every fault planted into valid artifacts is found."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mis_bench.artifacts.base import Part
from mis_bench.checking.files import impossible
from mis_bench.checking.folders import check_path
from mis_bench.statistics import Interval, Latency

Fields = dict[str, Any]


def faults(path: Path) -> list[str]:
    return [fault for each in check_path(path) for fault in each.faults]


# Each: the file, what is done to its fields, and a part of the sentence that must come of it.
PLANTED: dict[str, tuple[str, Callable[[Fields], object], str]] = {
    # form and schema
    "unknown schema": ("run/run.json", lambda f: f.update(schema_version="mis-run-v9"), "schema_version must be"),
    "no schema": ("run/run.json", lambda f: f.pop("schema_version"), "schema_version must be one of"),
    "another schema": ("run/run.json", lambda f: f.update(schema_version="mis-stress-v1"), "results: Field required"),
    "missing field": ("run/run.json", lambda f: f.pop("run_id"), "run_id: Field required"),
    "unknown field": ("run/run.json", lambda f: f.update(extra=1), "extra: Extra inputs"),
    "unknown field of the target": ("run/run.json", lambda f: f["target"].update(extra=1), "target.extra"),
    "negative number": ("run/run.json", lambda f: f["rows"][0].update(throughput_ips=-1), "rows.0.throughput_ips"),
    "text for a number": ("run/run.json", lambda f: f["rows"][0].update(num_runs="many"), "rows.0.num_runs"),
    "time without zone": (
        "run/run.json", lambda f: f["environment"].update(timestamp="2026-01-01T00:00:00"), "environment.timestamp",
    ),
    "short commit": ("run/run.json", lambda f: f["environment"].update(commit="abc"), "environment.commit"),
    "foreign generator": ("run/run.json", lambda f: f.update(generated_by="hand"), "generated_by"),
    "unknown status": ("run/run.json", lambda f: f["rows"][0].update(status="fine"), "rows.0.status"),
    "unknown profile": ("run/run.json", lambda f: f.update(profile="tiny"), "profile"),
    # run
    "ended before it began": ("run/run.json", lambda f: f.update(finished="2001-01-01T00:00:00Z"), "finished is"),
    "in the future": ("run/run.json", lambda f: f.update(finished="2101-01-01T00:00:00Z"), "in the future"),
    "longer than it took": ("run/run.json", lambda f: f.update(total_runtime_seconds=1e6), "more than from"),
    "shorter than its rows": ("run/run.json", lambda f: f.update(total_runtime_seconds=0, rows=[
        row | {"seconds": row["seconds"] * 1e3} for row in f["rows"]]), "less than the rows' seconds"),
    "too few rows": ("run/run.json", lambda f: f["rows"].pop(), "total_configurations is 2"),
    "the same row twice": ("run/run.json", lambda f: f["rows"][1].update(name=f["rows"][0]["name"]), "occurs twice"),
    "items of another workload": ("run/run.json", lambda f: f["rows"][0].update(batch_size=5), "batch_size is 5"),
    "labels of another workload": ("run/run.json", lambda f: f["rows"][0].update(num_labels=2), "num_labels is 2"),
    "throughput": ("run/run.json", lambda f: f["rows"][0].update(throughput_ips=1.0), "throughput_ips is 1.0"),
    "requests a second": ("run/run.json", lambda f: f["rows"][0].update(throughput_rps=1.0), "throughput_rps is 1.0"),
    "total of items": ("run/run.json", lambda f: f["rows"][0].update(total_items=1), "total_items is 1"),
    "success rate": ("run/run.json", lambda f: f["rows"][0].update(success_rate=0.9), "success_rate is 0.9"),
    "counts": ("run/run.json", lambda f: f["rows"][0].update(num_runs=5), "do not add up to 5"),
    "percentiles": ("run/run.json", lambda f: f["rows"][0].update(latency_p95_ms=9e9), "above latency_p99_ms"),
    "no latencies": ("run/run.json", lambda f: f["rows"][0].update(latency_std_ms=None), "latencies must be given"),
    "reason of nothing": ("run/run.json", lambda f: f["rows"][0].update(reason="why"), "reason is 'why'"),
    "no reason": ("run/run.json", lambda f: f["rows"][0].update(status="warn"), "reason is None"),
    "failed without failure": (
        "run/run.json", lambda f: f["rows"][0].update(status="failed", reason="x"), "no timed call failed",
    ),
    "failures of an ok row": (
        "run/run.json", lambda f: f["rows"][0].update(failure_reason_counts={"timeout": 1}), "1 failed calls",
    ),
    "skipped but timed": (
        "run/run.json", lambda f: f["rows"][0].update(status="skipped", reason="x"), "skipped with 4 timed calls",
    ),
    "compiled but ok": ("run/run.json", lambda f: f["rows"][0].update(timed_compilations=2), "something was compiled"),
    "warned of nothing": (
        "run/run.json", lambda f: f["rows"][0].update(status="warn", reason="x"), "status is warn, but nothing",
    ),
    "interval": ("run/run.json", lambda f: f["rows"][0]["throughput_interval"].update(low=9e9), "low <= value"),
    "value of the interval": (
        "run/run.json", lambda f: f["rows"][0]["throughput_interval"].update(value=1, low=1), "but the figure is",
    ),
    "nothing was measured": ("run/run.json", lambda f: [
        row.update(status="skipped", reason="x", successful_runs=0) for row in f["rows"]], "none was measured"),
    "gates": ("run/run.json", lambda f: f.update(gates={"max_p99_ms": 1e-9}), "gates_missed says nothing"),
    "interval of an open loop": ("run/run.json", lambda f: f.update(rate=3.0), "the loop was open"),
    "checksum": ("run/run.json", lambda f: f["rows"][0]["workload"].update(sha256="0" * 64), "sha256 is 000"),
    "tokens": ("run/run.json", lambda f: f["rows"][0]["workload"].update(num_tokens=9), "num_tokens is 9"),
    "no such workload": ("run/run.json", lambda f: f["rows"][0]["workload"].update(name="x"), "not a workload"),
    "softmax": ("run/run.json", lambda f: f["rows"][0]["workload"].update(apply_softmax=True), "sha256 is"),
    "vocabulary": ("run/run.json", lambda f: f["rows"][0]["workload"].update(vocab_size=300), "sha256 is"),
    "figures of other calls": (
        "run/run.json", lambda f: f["rows"][0].update(latency_mean_ms=0.5), "latency_mean_ms is 0.5, but the calls",
    ),
    "warm-ups of other calls": ("run/run.json", lambda f: f["rows"][0].update(warmup_runs=3), "the warmup calls"),
    "warm-up of other calls": ("run/run.json", lambda f: f["rows"][0].update(warmup_ratio=0.2), "warmup_ratio is 0.2"),
    # stress
    "stress counts": ("stress/stress.json", lambda f: f["results"][0].update(total_requests=9), "total_requests is 9"),
    "stress failures": (
        "stress/stress.json", lambda f: f["results"][0].update(failure_reason_counts={"x": 1}), "failed_requests is 0",
    ),
    "stress throughput": (
        "stress/stress.json", lambda f: f["results"][0].update(throughput_rps=1), "throughput_rps is 1",
    ),
    "stress items": ("stress/stress.json", lambda f: f["results"][0].update(throughput_ips=1), "throughput_ips is 1"),
    "stress percentiles": (
        "stress/stress.json", lambda f: f["results"][0].update(latency_p50_ms=9e9), "above latency_p99_ms",
    ),
    "stress verdict": ("stress/stress.json", lambda f: f["results"][0].update(success=False), "success is False"),
    "stress verdict of all": ("stress/stress.json", lambda f: f.update(success=False), "success is False"),
    "stress silence": (
        "stress/stress.json", lambda f: f["results"][0].update(answers_afterwards=False), "the counts make it False",
    ),
    "stress errors": ("stress/stress.json", lambda f: f["results"][0].update(errors=["x"]), "errors has 1 messages"),
    "too many errors": ("stress/stress.json", lambda f: f["results"][0].update(errors=["x"] * 11), "errors"),
    "stress configuration": (
        "stress/stress.json", lambda f: f["results"][0]["configuration"].update(batch_size=3), "batch_size is 3",
    ),
    "stress twice": (
        "stress/stress.json", lambda f: f["results"][1].update(name=f["results"][0]["name"]), "occurs twice",
    ),
    "unknown scenario": ("stress/stress.json", lambda f: f["results"][0].update(scenario="x"), "scenario"),
    # matrix: a configuration
    "chunk throughput": (
        "matrix/chunk_4.json", lambda f: f["row"].update(throughput_items_sec=1), "throughput_items_sec is 1",
    ),
    "chunk p50": ("matrix/chunk_4.json", lambda f: f["row"].update(p50_total_e2e_ms=1e-3), "p50_total_e2e_ms is"),
    "chunk p95": ("matrix/chunk_4.json", lambda f: f["row"].update(p95_total_e2e_ms=9e9), "p95_total_e2e_ms is"),
    "chunk calls": ("matrix/chunk_1.json", lambda f: f["row"].update(mean_chunk_call_ms=9e9), "mean_chunk_call_ms is"),
    "chunk success": ("matrix/chunk_4.json", lambda f: f["row"].update(success_rate=0.5), "success_rate is 0.5"),
    "chunk runs": ("matrix/chunk_4.json", lambda f: f["row"].update(successful_runs=1), "successful_runs is 1"),
    "chunk status": ("matrix/chunk_4.json", lambda f: f["row"].update(status="failed"), "status is 'failed'"),
    "chunk failures": (
        "matrix/chunk_4.json", lambda f: f["row"].update(failure_reason_counts={"x": 1}), "failure_reason_counts is",
    ),
    "first run": (
        "matrix/chunk_4.json", lambda f: f["row"].update(first_run_penalty_ratio=7), "first_run_penalty_ratio is 7",
    ),
    "cost of a run": (
        "matrix/matrix_results.json", lambda f: f["results"][0].update(usd_per_run=7), "usd_per_run is 7",
    ),
    "items for a dollar": ("matrix/chunk_4.json", lambda f: f["row"].update(items_per_usd=7), "items_per_usd is 7"),
    "no cost": (
        "matrix/matrix_results.json", lambda f: f["results"][0].update(usd_per_run=None), "usd_per_run must be given",
    ),
    "number of chunks": ("matrix/chunk_1.json", lambda f: f["row"].update(num_chunks=3), "num_chunks is 3, not 4"),
    "no scores": ("matrix/chunk_4.json", lambda f: f["row"].update(reference_scores=None), "no reference_scores"),
    "too few scores": (
        "matrix/chunk_4.json", lambda f: f["row"]["reference_scores"].pop(), "not 4 items by 2 labels",
    ),
    "scores beyond 1": (
        "matrix/chunk_4.json", lambda f: f["row"]["reference_scores"][0].__setitem__(0, 3.0), "not all from 0 to 1",
    ),
    "chunk longer than its run": (
        "matrix/chunk_4.json",
        lambda f: f["row"]["run_records"][1].update(chunk_calls_ms=[1e6]), "add up to more than total_e2e_ms",
    ),
    "chunk of another mission": ("matrix/chunk_4.json", lambda f: f.update(run_id="other"), "run_id is not that of"),
    "chunk of another view": (
        "matrix/chunk_4.json", lambda f: f.update(evaluation_view="best_native"), "evaluation_view is not that of",
    ),
    "chunk of another size": (
        "matrix/chunk_4.json", lambda f: f["row"]["configuration"].update(chunk_size=5), "holds the sweep of chunk_5",
    ),
    "chunk of another phase": ("matrix/chunk_4.json", lambda f: f.update(phase="confirm"), "holds the confirm of"),
    "chunk too early": (
        "matrix/chunk_4.json",
        lambda f: f["environment"].update(timestamp="2001-01-01T00:00:00Z"), "before the mission's",
    ),
    "chunk without chunks": (
        "matrix/chunk_4.json", lambda f: f["row"]["configuration"].update(chunk_size=0), "chunk_size is 0",
    ),
    # matrix: all of them
    "matrix row differs": (
        "matrix/matrix_results.json",
        lambda f: f["results"][0].update(steps_per_call=9), "the sweep row chunk_1 differs from chunk_1.json",
    ),
    "confirmed row differs": (
        "matrix/matrix_results.json",
        lambda f: f["confirm_results"][0].update(steps_per_call=9), "the confirm row chunk_1 differs from confirm_",
    ),
    "matrix row missing": ("matrix/matrix_results.json", lambda f: f["results"].pop(0), "results are not the config"),
    "matrix row twice": (
        "matrix/matrix_results.json", lambda f: f["results"].append(f["results"][0]), "chunk_1 occurs twice",
    ),
    "not confirmed": ("matrix/matrix_results.json", lambda f: f["confirm_results"].pop(), "confirm_results are not of"),
    "other best": ("matrix/matrix_results.json", lambda f: f["summary"].update(best_chunk_size=1), "best_chunk_size"),
    "other throughput": (
        "matrix/matrix_results.json", lambda f: f["summary"].update(best_throughput=1), "best_throughput is 1",
    ),
    "other counts": (
        "matrix/matrix_results.json", lambda f: f["summary"].update(successful_configs=1), "successful_configs",
    ),
    "other recommendation": (
        "matrix/matrix_results.json",
        lambda f: f["summary"]["recommendation"].update(chunk_size=1), "summary.recommendation",
    ),
    "other reasons": ("matrix/matrix_results.json", lambda f: f["summary"].update(ineligible={"a": "b"}), "ineligible"),
    "matrix of another mission": ("matrix/matrix_results.json", lambda f: f.update(run_id="other"), "run_id is not"),
    "matrix before its chunks": (
        "matrix/matrix_results.json", lambda f: f.update(finished=f["environment"]["timestamp"]), "after the matrix",
    ),
    "matrix took no time": (
        "matrix/matrix_results.json", lambda f: (f.update(total_runtime_seconds=0), f["results"][0]["run_records"][0]
        .update(total_e2e_ms=50)), "less than the runs together",
    ),
    "planned otherwise": ("matrix/run_metadata.json", lambda f: f["plan"].update(sweep_runs=6), "unlike the plan"),
    "planned for the future": (
        "matrix/run_metadata.json",
        lambda f: f["environment"].update(timestamp="2101-01-01T00:00:00Z"), "environment.timestamp is 2101",
    ),
    "planned twice": (
        "matrix/run_metadata.json",
        lambda f: f["plan"]["configurations"].append(f["plan"]["configurations"][0]), "chunk_1 occurs twice",
    ),
    "planned another workload": (
        "matrix/run_metadata.json", lambda f: f["plan"]["workload"].update(sha256="1" * 64), "plan.workload.sha256",
    ),
    "planned another price": (
        "matrix/run_metadata.json", lambda f: f["plan"].update(hourly_cost=3), "the plan makes it",
    ),
}  # fmt: skip


def test_percentiles_and_intervals_are_looked_for_everywhere() -> None:
    class Holder(Part):
        found: dict[str, list[Latency | Interval]]

    upside_down = Interval(value=1, low=2, high=0, confidence=0.9)
    falling = Latency(p50_ms=3, p95_ms=2, p99_ms=1, mean_ms=2, std_ms=0)
    assert list(impossible(Holder(found={"a": [falling, upside_down]}))) == [
        "found.a.0.p50_ms is 3.0, above p95_ms 2.0",
        "found.a.0.p95_ms is 2.0, above p99_ms 1.0",
        "found.a.1.low is 2.0, above high 0.0",
    ]


@pytest.mark.parametrize("name", PLANTED)
def test_planted_faults_are_found(stored: Path, tmp_path: Path, name: str) -> None:
    file, plant, sentence = PLANTED[name]
    shutil.copytree(stored, tmp_path, dirs_exist_ok=True)
    path = tmp_path / file
    fields = json.loads(path.read_text())
    plant(fields)
    path.write_text(json.dumps(fields))
    assert any(sentence in fault for fault in faults(path.parent)), faults(path.parent)


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("run/run.json", b"", "is not JSON"),
        ("run/run.json", b'{"schema_version": "mis-run-v1"', "is not JSON"),
        ("run/run.json", b"\xff\xfe", "is not JSON"),
        ("run/run.json", b"[]", "schema_version must be one of"),
        ("run/run.json", b'{"a": 1, "a": 2}', "a field occurs twice"),
        ("run/run.json", b'{"a": NaN}', "NaN is no number"),
        ("run/run.json", b'{"schema_version": ["mis-run-v1"]}', "schema_version must be one of"),
        ("run/run.json", b"[" * 100_000, "is not JSON"),
        ("run/run.csv", b"name\n", "differs from the rows"),
        ("run/run.csv", b"\xff", "cannot be read"),
        ("run/calls.jsonl", b"", "the timed calls are not numbered"),
        ("run/calls.jsonl", b"{}\n", "line 1"),
        ("run/calls.jsonl", b"\xff", "cannot be read"),
        ("matrix/chunk_4.json", b"{", "chunk_4.json is missing or broken"),
        ("matrix/run_metadata.json", b"{", "run_metadata.json is missing or broken"),
    ],
)
def test_broken_files_are_found(stored: Path, tmp_path: Path, name: str, content: bytes, sentence: str) -> None:
    shutil.copytree(stored, tmp_path, dirs_exist_ok=True)
    (tmp_path / name).write_bytes(content)
    assert any(sentence in fault for fault in faults((tmp_path / name).parent))


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("run/run.csv", "is missing"),
        ("run/calls.jsonl", "is missing"),
        ("matrix/chunk_4.json", "chunk_4.json is missing or broken"),
        ("matrix/confirm_chunk_1.json", "confirm_chunk_1.json is missing or broken"),
        ("matrix/run_metadata.json", "run_metadata.json is missing or broken"),
        ("matrix/matrix_results.json", "the mission is not finished"),
    ],
)
def test_missing_files_are_found(stored: Path, tmp_path: Path, name: str, sentence: str) -> None:
    shutil.copytree(stored, tmp_path, dirs_exist_ok=True)
    (tmp_path / name).unlink()
    assert any(sentence in fault for fault in faults((tmp_path / name).parent))


def test_a_file_too_many_is_found(stored: Path, tmp_path: Path) -> None:
    shutil.copytree(stored, tmp_path, dirs_exist_ok=True)
    fields = json.loads((tmp_path / "matrix" / "chunk_4.json").read_text())
    fields["row"]["configuration"]["chunk_size"] = 2
    fields["row"]["num_chunks"] = 2
    (tmp_path / "matrix" / "chunk_2.json").write_text(json.dumps(fields))
    assert "matrix_results.json has no such row" in faults(tmp_path / "matrix")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda call: call | {"row": "nobody"}, "the artifact has no row nobody"),
        (lambda call: call | {"number": 7}, "are not numbered"),
        (lambda call: call | {"latency_ms": call["latency_ms"] * 2}, "but the calls make it"),
        (lambda call: call | {"failure": "timeout"}, "not those of failure_reason_counts"),
        (lambda call: call | {"phase": "warmup", "failure": "timeout"}, "a warm-up failed, but calls were timed"),
        (lambda call: call | {"began_s": 9e9}, "outside of the timed loop"),
        (lambda call: call | {"phase": "other"}, "line"),
    ],
)
def test_changed_calls_are_found(
    stored: Path, tmp_path: Path, change: Callable[[Fields], Fields], sentence: str
) -> None:
    shutil.copytree(stored, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "run" / "calls.jsonl"
    calls = [json.loads(line) for line in path.read_text().splitlines()]
    calls[-1] = change(calls[-1])
    path.write_text("".join(json.dumps(call) + "\n" for call in calls))
    assert any(sentence in fault for fault in faults(tmp_path / "run"))
