"""Figures beside stored ones, and `mis-bench run --baseline`."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from mis_bench.artifacts.base import ArtifactError
from mis_bench.cli import main
from mis_bench.perf.rows import read_rows
from mis_bench.perf.stored import Row, compare_with_baseline, file_of

ROW = Row("batch-4-labels-2", 4, 2, "model", "bfloat16", "a" * 64, 100, 50.0, 100.0, 120.0)


def status(**changes: object) -> tuple[str, list[str]]:
    (found,) = compare_with_baseline([replace(ROW, **changes)], [ROW]).rows
    return found.status, found.reasons


def test_limits_of_a_row() -> None:
    assert status() == ("OK", [])
    assert status(throughput_ips=48.0) == ("OK", [])
    assert status(throughput_ips=47.0) == ("WARN", ["-6.0% items/s"])
    assert status(throughput_ips=44.0) == ("REGRESSION", ["-12.0% items/s"])
    assert status(latency_p95_ms=114.0)[0] == "OK"
    assert status(latency_p95_ms=116.0) == ("REGRESSION", ["p95 +16%"])
    assert status(latency_p99_ms=150.0) == ("WARN", ["p99 +25%"])
    assert status(throughput_ips=70.0, latency_p95_ms=80.0) == ("OK", [])


def test_percentiles_of_few_calls_do_not_fail() -> None:
    assert status(latency_p95_ms=130.0, successful_runs=19) == ("WARN", ["p95 +30% of only 19 calls"])
    assert status(latency_p99_ms=200.0, successful_runs=40) == ("OK", [])


def test_the_threshold_can_be_chosen() -> None:
    (found,) = compare_with_baseline([replace(ROW, throughput_ips=44.0)], [ROW], threshold=0.2).rows
    assert found.status == "WARN"


@pytest.mark.parametrize(
    "other",
    [
        {"batch_size": 1},
        {"num_labels": 4},
        {"model": "another"},
        {"dtype": "float32"},
        {"workload_sha256": "b" * 64},
        {"successful_runs": 0},
    ],
)
def test_a_row_that_is_not_measured_any_more_is_a_regression(other: dict[str, object]) -> None:
    found = compare_with_baseline([replace(ROW, **other)], [ROW])
    assert [(row.status, row.reasons) for row in found.rows] == [("REGRESSION", ["not measured"])]
    assert (found.common, found.new) == (0, 0 if other == {"successful_runs": 0} else 1)


def test_a_row_that_was_not_measured_then_is_new() -> None:
    found = compare_with_baseline([ROW], [replace(ROW, successful_runs=0)])
    assert (found.rows, found.common, found.new) == ([], 0, 1)


def test_a_checksum_that_a_file_does_not_tell_is_not_compared() -> None:
    assert compare_with_baseline([ROW], [replace(ROW, workload_sha256=None)]).common == 1


def test_neighbours_excuse_a_slow_tail_and_never_slow_calls() -> None:
    def beside(**changes: float) -> str:
        then = replace(ROW, cpu_ms=80.0)
        return compare_with_baseline([replace(then, **changes)], [then]).rows[0].status

    assert beside(latency_p95_ms=130.0) == "WARN"
    assert beside(latency_p95_ms=130.0, cpu_ms=90.0) == "REGRESSION"
    assert beside(throughput_ips=44.0) == "REGRESSION"  # a wait, which CPU time does not hold
    assert beside(throughput_ips=47.0, latency_p95_ms=130.0) == "REGRESSION"


def test_files_are_named_after_the_hardware() -> None:
    assert file_of("Intel(R) Xeon(R) Processor, 2 cores", Path("b")) == Path("b/intel-xeon-processor-2-cores.json")
    assert file_of("4 x TPU v6 lite", Path("b")) == Path("b/4-x-tpu-v6-lite.json")


def test_files_that_are_no_baseline_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.csv"
    path.write_text("name,batch_size\na,1\n")
    with pytest.raises(ArtifactError, match="no column num_labels"):
        read_rows(path)
    path.write_text("name,batch_size,num_labels,model,dtype,successful_runs,throughput_ips\na,1,2,m,d,x,1\n")
    with pytest.raises(ArtifactError, match="invalid literal"):
        read_rows(path)


@pytest.fixture(scope="module")
def folder(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "first"
    assert run(checkpoint, folder).exit_code == 0
    return folder


def run(checkpoint: Path, folder: Path, *more: str) -> Result:
    sizes = ["--workload", "probe-20-2-3", "--runs", "3", "--warmup-runs", "2", "--option", "max_total_tokens=1024"]
    engine = ["--model", str(checkpoint), "--option", "chunked_prefill_size=256"]
    return CliRunner().invoke(main, ["run", *sizes, *engine, "--output", str(folder), *more])


def faster(folder: Path, factor: float, path: Path, hardware: str | None = None) -> Path:
    """Write the baseline of a machine that was so much faster, consistent in itself."""
    result = json.loads((folder / "run.json").read_text())
    for row in result["rows"]:
        row["seconds"] /= factor
        for name in ("throughput_ips", "throughput_rps"):
            row[name] *= factor
        for name in ("value", "low", "high"):
            row["throughput_interval"][name] *= factor
    result["environment"]["hardware"] = hardware or result["environment"]["hardware"]
    path.write_text(json.dumps(result))
    return path


def test_run_fails_where_it_is_much_slower_than_its_baseline(checkpoint: Path, folder: Path, tmp_path: Path) -> None:
    result = run(checkpoint, tmp_path / "second", "--baseline", str(faster(folder, 1000, tmp_path / "fast.json")))
    assert result.exit_code == 1
    assert "REGRESSION" in result.stdout


def test_run_passes_where_it_is_much_faster(checkpoint: Path, folder: Path, tmp_path: Path) -> None:
    slow = faster(folder, 0.001, tmp_path / "slow.json")
    result = run(checkpoint, tmp_path / "second", "--baseline", str(slow))
    assert result.exit_code == 0
    assert "Against the baseline" in result.stdout


def test_a_baseline_of_other_hardware_decides_nothing(checkpoint: Path, folder: Path, tmp_path: Path) -> None:
    path = faster(folder, 1000, tmp_path / "fast.json", hardware="8 x TPU v6 lite")
    result = run(checkpoint, tmp_path / "second", "--baseline", str(path))
    assert result.exit_code == 0
    assert "information only" in result.stdout


def test_run_reads_csv_and_refuses_a_baseline_without_its_rows(checkpoint: Path, folder: Path, tmp_path: Path) -> None:
    with (folder / "run.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    path = tmp_path / "run.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(row | {"model": "another"} for row in rows)
    result = run(checkpoint, tmp_path / "second", "--baseline", str(path))
    assert result.exit_code == 1
    assert "2 of 2 rows of the baseline were not measured" in result.stderr
    assert "2 measured rows are not in the baseline" in result.stderr


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--option", "chunked_prefill_size=512"), "chunked_prefill_size was 256 and is 512"),
        (("--concurrency", "2"), "concurrency was 1 and is 2"),
    ],
)
def test_runs_under_different_conditions_are_not_compared(
    checkpoint: Path, folder: Path, tmp_path: Path, more: tuple[str, ...], said: str
) -> None:
    result = run(checkpoint, tmp_path / "second", "--baseline", str(faster(folder, 0.001, tmp_path / "x.json")), *more)
    assert result.exit_code == 1
    assert said in result.stderr


def test_rows_that_are_lost_fail_the_run(checkpoint: Path, folder: Path, tmp_path: Path) -> None:
    slow = faster(folder, 0.001, tmp_path / "slow.json")
    fields = json.loads(slow.read_text())
    fields["rows"] += [row | {"name": f"lost-{row['name']}"} for row in fields["rows"]]
    slow.write_text(json.dumps(fields))
    result = run(checkpoint, tmp_path / "second", "--baseline", str(slow))
    assert result.exit_code == 1
    assert "not measured" in result.stdout
    assert "2 of 4 rows of the baseline were not measured" in result.stderr
    assert "not in the baseline" not in result.stderr


def test_a_file_that_is_no_artifact_is_a_usage_error(checkpoint: Path, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text("{}")
    result = run(checkpoint, tmp_path / "second", "--baseline", str(path))
    assert result.exit_code == 2
    assert "--baseline" in result.stderr
