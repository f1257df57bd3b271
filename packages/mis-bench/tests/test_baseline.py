"""Figures beside stored ones, and `mis-bench run --baseline`."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from mis_bench.artifacts.base import ArtifactError
from mis_bench.cli import main
from mis_bench.perf.rows import CsvRow, read_rows
from mis_bench.perf.stored import compare_with_baseline, file_of

ROW = CsvRow("batch-4-labels-2", 4, 2, "model", "bfloat16", 100, 50.0, 100.0, 120.0)


def status(**changes: object) -> tuple[str, list[str]]:
    (found,) = compare_with_baseline([replace(ROW, **changes)], [ROW])
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
    (found,) = compare_with_baseline([replace(ROW, throughput_ips=44.0)], [ROW], threshold=0.2)
    assert found.status == "WARN"


@pytest.mark.parametrize(
    "other", [{"batch_size": 1}, {"num_labels": 4}, {"model": "another"}, {"dtype": "float32"}, {"successful_runs": 0}]
)
def test_rows_of_another_kind_are_not_compared(other: dict[str, object]) -> None:
    assert compare_with_baseline([ROW], [replace(ROW, **other)]) == []


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
    assert "No row of this run is in the baseline" in result.stderr


def test_a_file_that_is_no_artifact_is_a_usage_error(checkpoint: Path, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text("{}")
    result = run(checkpoint, tmp_path / "second", "--baseline", str(path))
    assert result.exit_code == 2
    assert "--baseline" in result.stderr
