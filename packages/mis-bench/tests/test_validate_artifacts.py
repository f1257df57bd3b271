"""Records that do not fit their plan, and summaries that do not fit their records, are found."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from jsonschema import Draft202012Validator

from bench_fakes import Done, options_of
from mis_bench.artifact import schemas, write_schemas
from mis_bench.cli import main
from mis_bench.records import PLAN, RECORDS, SUMMARY, read_results
from mis_bench.summary import summarize

DOCS = Path(__file__).parents[3] / "docs" / "schemas"
Bench = Callable[..., Done]
Lines = list[dict[str, Any]]


@pytest.fixture
def folder(bench: Bench) -> Path:
    """A comparison in closed and open loads, with a confirmation."""
    done = bench("compare", *options_of(["a=engine", "b=engine"]), "--workload", "probe-20-6-4", "--chunk-sizes", "3")
    assert done.status == 0
    return done.folder


def checked(path: Path, *flags: str) -> Any:
    return CliRunner().invoke(main, ["validate-artifacts", str(path), *flags])


def rewritten(folder: Path, change: Callable[[Lines], object], *, summed: bool = False) -> str:
    """Change records, sum them up anew as a forger would, and return what the check says."""
    path = folder / RECORDS
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    change(lines)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    if summed:
        summarize(read_results(folder)).write(folder / SUMMARY)
    found = checked(folder)
    assert found.exit_code == 1, found.output
    return found.stdout


def of(lines: Lines, kind: str, phase: str = "timed") -> Lines:
    return [line for line in lines if line["kind"] == kind and line.get("phase", phase) == phase]


def test_what_commands_write_is_without_faults(bench: Bench, folder: Path, tmp_path: Path) -> None:
    bench("run", "--workload", "probe-9-3-4", "--rate", "50", "--runs", "6", folder=tmp_path / "all" / "open")
    bench("run", "--trace", "mixed:50:9", folder=tmp_path / "all" / "trace")
    bench("matrix", "--workload", "probe-9-6-4", "--chunk-sizes", "1,3,6", folder=tmp_path / "all" / "matrix")
    bench("stress", "--seconds", "1", folder=tmp_path / "all" / "stress")
    bench("sweep", "--workload", "probe-9-3-4", "--rates", "9", folder=tmp_path / "all" / "sweep")
    shutil.copytree(folder, tmp_path / "all" / "compare")
    found = checked(tmp_path / "all", "--all")
    assert found.exit_code == 0, found.output
    assert found.stdout.endswith("6 checked, 0 faults\n")
    assert checked(tmp_path / "all").exit_code == 2


CHANGES: dict[str, tuple[Callable[[Lines], object], str]] = {
    "a call less": (lambda lines: lines.remove(of(lines, "call")[3]), "0 calls, but its record says 1"),
    "a call twice": (lambda lines: lines.insert(0, dict(of(lines, "call")[3])), "2 calls, but its record says 1"),
    "a window less": (lambda lines: lines.remove(of(lines, "window")[2]), "no record of these windows"),
    "a round less": (
        lambda lines: [lines.remove(of(lines, kind)[-1]) for kind in ("window", "call")],
        "but the plan has [1, 2, 3, 4, 5, 6]",
    ),
    "faster than its parts": (
        lambda lines: of(lines, "call")[0].update(done_s=0.0, sent_s=0.0, chunks_s=[0.3, 0.3]),
        "took less time than its parts",
    ),
    "longer than its window": (lambda lines: of(lines, "call")[0].update(done_s=9.0), "which lasted"),
    "answered before it was sent": (
        lambda lines: of(lines, "call")[0].update(done_s=0, sent_s=1e-3),
        "before it was sent",
    ),
    "more items": (lambda lines: of(lines, "call")[0].update(items=7), "has 7 items, but the workload 6"),
    "more tokens": (lambda lines: of(lines, "call")[0].update(tokens=9), "has 9 tokens, but the workload 44"),
    "no scores": (lambda lines: of(lines, "call")[0].pop("scores_sha256"), "scores belong to answered requests"),
    "scores of a failure": (
        lambda lines: of(lines, "call")[0].update(error="timeout"),
        "scores belong to answered requests",
    ),
    "windows at once": (lambda lines: of(lines, "window")[1].update(seconds=1e4), "was over"),
    "in the future": (lambda lines: of(lines, "window")[-1].update(began="2999-01-01T00:00:00Z"), "in the future"),
    "an unknown case": (lambda lines: of(lines, "call")[0].update(case="c"), "belong to no case"),
    "no isolation": (
        lambda lines: [lines.remove(line) for line in list(lines) if line.get("name") == "isolation"],
        "its scores were not checked",
    ),
    "no correctness": (
        lambda lines: [lines.remove(line) for line in list(lines) if line.get("name") == "correctness"],
        "not held against the reference's",
    ),
    "a misspelt field": (lambda lines: of(lines, "call")[0].update(itmes=6), "records.jsonl:"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_record_is_found_though_its_summary_was_forged(folder: Path, change: str) -> None:
    apply, fault = CHANGES[change]
    if change == "a misspelt field":
        assert fault in rewritten(folder, apply)
        return
    try:
        found = rewritten(folder, apply, summed=True)
    except KeyError:  # such records cannot even be summed up
        found = checked(folder).stdout
    assert fault in found


@pytest.mark.parametrize("field", ["done_s", "cached_tokens", "max_abs", "error"])
def test_a_changed_figure_is_found_by_the_summary(folder: Path, field: str) -> None:
    values = {"done_s": 0.005, "cached_tokens": 3, "max_abs": 0.5, "error": "timeout"}

    def change(lines: Lines) -> None:
        call = of(lines, "call")[4]
        call[field] = values[field]
        if field == "error":
            del call["scores_sha256"]

    assert "but the records make it" in rewritten(folder, change)


def test_a_changed_summary_and_an_absent_one_are_found(folder: Path) -> None:
    path = folder / SUMMARY
    summary = json.loads(path.read_text())
    summary["rows"][0]["items_per_second"]["value"] *= 1.01
    summary["passed"] = False
    path.write_text(json.dumps(summary))
    found = checked(folder)
    assert "rows.0.items_per_second.value is" in found.stdout
    assert "passed is False, but the records make it True" in found.stdout
    path.unlink()
    assert "was interrupted" in checked(folder).stdout


@pytest.mark.parametrize(
    ("field", "value", "fault"),
    [
        ("sha256", "0" * 64, "but its name makes it"),
        ("num_tokens", 43, "its sizes are not those of its name"),
        ("name", "probe-20-6-5", "its sizes are not those of its name"),
        ("num_items", 0, "greater than or equal to 1"),
    ],
)
def test_a_workload_that_is_not_its_names_is_found(folder: Path, field: str, value: Any, fault: str) -> None:
    plan = json.loads((folder / PLAN).read_text())
    for case in plan["cases"]:
        case["workload"][field] = value
    (folder / PLAN).write_text(json.dumps(plan))
    assert fault in checked(folder).stdout


@pytest.mark.parametrize("field", ["hardware", "python_version", "commit", "versions", "memory_bytes"])
def test_an_incomplete_environment_is_found(folder: Path, field: str) -> None:
    plan = json.loads((folder / PLAN).read_text())
    del plan["environment"][field]
    (folder / PLAN).write_text(json.dumps(plan))
    assert f"environment.{field}" in checked(folder).stdout


def test_arrivals_that_the_seed_does_not_make_are_found(bench: Bench) -> None:
    done = bench("run", "--workload", "probe-9-3-4", "--rate", "50", "--runs", "6")

    def change(lines: Lines) -> None:
        of(lines, "call")[2]["due_s"] *= 0.9

    assert "not due when the plan's seed says" in rewritten(done.folder, change, summed=True)


def test_more_at_once_than_planned_is_found(bench: Bench) -> None:
    done = bench("run", "--workload", "probe-9-3-4", "--concurrency", "2", "--runs", "20", "--warmup-runs", "2")

    def change(lines: Lines) -> None:
        for call in of(lines, "call"):
            call.update(sent_s=0.0)

    assert "requests at once, but the plan has 2" in rewritten(done.folder, change, summed=True)


def test_a_load_without_proof_of_survival_is_found(bench: Bench) -> None:
    done = bench("stress", "--scenario", "large-batch")
    found = rewritten(done.folder, lambda lines: lines.remove(of(lines, "call", "afterwards")[0]), summed=True)
    assert "nothing shows that the target answered afterwards" in found


def test_nothing_to_check_and_what_is_no_artifact(tmp_path: Path) -> None:
    assert checked(tmp_path).exit_code == 2
    (tmp_path / "x.json").write_text('{"schema_version": "mis-none-v1"}')
    assert "schema_version must be one of" in checked(tmp_path).stdout


def test_published_schemas_are_those_of_the_models(tmp_path: Path) -> None:
    published = {path.name: path.read_text() for path in DOCS.glob("*.json")}
    assert published == schemas(), "run python -m mis_bench.artifact docs/schemas"
    (tmp_path / "gone.json").write_text("{}")
    write_schemas(tmp_path)
    assert {path.name: path.read_text() for path in tmp_path.glob("*.json")} == schemas()


def test_published_schemas_accept_what_the_commands_write(folder: Path) -> None:
    for name in (PLAN, SUMMARY):
        document = json.loads((folder / name).read_text())
        schema = json.loads((DOCS / f"{document['schema_version']}.json").read_text())
        Draft202012Validator(schema).validate(document)
        document["surprise"] = 1
        assert not Draft202012Validator(schema).is_valid(document)
