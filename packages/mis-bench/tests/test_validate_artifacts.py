"""What breaks a schema, and summaries that are not what their records come to, are found."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from jsonschema import Draft202012Validator

from bench_fakes import Done, options_of
from mis_bench.artifact import schemas
from mis_bench.cli import main
from mis_bench.commits import CommitsHere
from mis_bench.manifest import MANIFEST
from mis_bench.results.folder import PLAN, RECORDS, SUMMARY

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


def rewritten(folder: Path, change: Callable[[Lines], object]) -> str:
    """Change records, and return what the check says."""
    path = folder / RECORDS
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    change(lines)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = checked(folder)
    assert found.exit_code == 1, found.output
    return found.stdout


def timed(lines: Lines) -> Lines:
    return [line for line in lines if line["kind"] == "call" and line["phase"] == "timed"]


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


@pytest.mark.parametrize("field", ["done_s", "cached_tokens", "max_abs", "error"])
def test_a_changed_record_is_found_by_the_summary(folder: Path, field: str) -> None:
    values = {"done_s": 0.0100001, "cached_tokens": 3, "max_abs": 0.5, "error": "timeout"}
    assert "but the records make it" in rewritten(folder, lambda lines: timed(lines)[4].update({field: values[field]}))


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"case": "c"}, "c is not in the plan"),
        ({"itmes": 6}, "call.itmes: Extra inputs"),
        ({"done_s": -1}, "call.done_s: Input should be greater"),
    ],
)
def test_what_is_no_record_of_the_plan_is_found_with_its_line(folder: Path, fields: dict[str, Any], fault: str) -> None:
    found = rewritten(folder, lambda lines: timed(lines)[0].update(fields))
    assert re.search(rf"records.jsonl:\d+: {fault}", found)


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
    assert "summary.json: it is missing" in checked(folder).stdout


@pytest.mark.parametrize("field", ["hardware", "python_version", "commit", "versions", "memory_bytes"])
def test_an_incomplete_environment_is_found(folder: Path, field: str) -> None:
    plan = json.loads((folder / PLAN).read_text())
    del plan["environment"][field]
    (folder / PLAN).write_text(json.dumps(plan))
    assert f"environment.{field}" in checked(folder).stdout


def test_nothing_to_check_and_what_is_no_artifact(tmp_path: Path) -> None:
    assert checked(tmp_path).exit_code == 2
    (tmp_path / "x.json").write_text('{"schema_version": "mis-none-v1"}')
    assert "schema_version must be one of" in checked(tmp_path).stdout
    (tmp_path / PLAN).write_text("{")
    assert "plan.json: Expecting property name" in checked(tmp_path).stdout


FORMER = {PLAN: "mis-plan-v1", SUMMARY: "mis-summary-v1"}


def made_before(folder: Path, *files: str) -> None:
    """Make of a folder what it would have been before there were manifests."""
    (folder / MANIFEST).unlink()
    for name in files:
        fields = json.loads((folder / name).read_text())
        for later in ("limits", "gates", "slo_p99_ms", "deltas") if name == SUMMARY else ():
            del fields[later]
            fields["findings"] = ["They had other words."]
        (folder / name).write_text(json.dumps(fields | {"schema_version": FORMER[name]}))


def test_a_folder_of_the_old_format_is_checked_without_manifest(folder: Path) -> None:
    made_before(folder, PLAN, SUMMARY)
    assert checked(folder).exit_code == 0, checked(folder).output
    assert "has no window of round 6" in rewritten(folder, lambda lines: lines.pop())
    (folder / SUMMARY).unlink()
    assert "there is no summary.json: evidence of kind compare, which was interrupted" in checked(folder).stdout


@pytest.mark.parametrize("file", [PLAN, SUMMARY])
def test_files_of_two_formats_disagree(folder: Path, file: str) -> None:
    made_before(folder, file)
    assert "does not match" in checked(folder).stdout


def test_an_interrupted_run_is_called_so_and_is_readable(folder: Path, tmp_path: Path) -> None:
    for name in (SUMMARY, MANIFEST):
        (folder / name).unlink()
    found = checked(folder)
    assert (found.exit_code, found.stdout.count("fault")) == (1, 1)
    assert "there is no manifest.json: evidence of kind compare, which was interrupted" in found.stdout
    page = CliRunner().invoke(main, ["report", str(folder), "--output", str(tmp_path / "page.html")])
    assert page.exit_code == 0, page.output


def test_files_of_others_that_have_our_names_are_none_of_ours(tmp_path: Path) -> None:
    for name in ("manifest.json", "summary.json", "plan.json"):
        (tmp_path / "web" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "web" / name).write_text('{"name": "an application", "icons": []}')
    (tmp_path / "deep.json").write_text("[" * 100_000)
    assert "There is nothing to check" in checked(tmp_path, "--all").output
    (tmp_path / "mine.json").write_text('{"schema_version": []}')
    assert "1 checked, 1 faults" in checked(tmp_path, "--all").stdout


def test_what_no_schema_refuses_is_a_fault_and_no_traceback(folder: Path) -> None:
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["files"][0]["path"] = "a\0b"
    (folder / MANIFEST).write_text(json.dumps(manifest))
    assert "files.0.path" in checked(folder).stdout
    (folder / MANIFEST).write_text("[" * 100_000)
    assert checked(folder).stdout.endswith("1 checked, 1 faults\n")


def test_nothing_of_a_folder_is_passed_over_in_silence(folder: Path, tmp_path: Path) -> None:
    rest = tmp_path / "all"
    for name in (RECORDS, SUMMARY, "validation.json", "profile.json"):
        (rest / name).mkdir(parents=True)
        source = folder / name if (folder / name).exists() else folder / PLAN
        (rest / name / name).write_bytes(source.read_bytes()[:500])
    found = checked(rest, "--all")
    assert found.exit_code == 1
    assert found.stdout.endswith("4 checked, 4 faults\n")


def test_a_folder_takes_one_command(bench: Bench, folder: Path) -> None:
    assert "already holds manifest.json" in bench("validate", "--model", ".", folder=folder).said
    (folder / "validation.json").write_text("{}")
    assert "validation.json: evidence of kind compare has no such file" in checked(folder).stdout


def test_a_report_and_a_log_may_lie_beside_evidence(bench: Bench) -> None:
    done = bench("sweep", "--workload", "probe-9-3-4", "--rates", "9", "--requests", "3")
    assert json.loads((done.folder / MANIFEST).read_text())["derived"] == ["report.md", "report.html"]
    (done.folder / "report.html").unlink()
    (done.folder / "server.log").write_text("ready")
    assert checked(done.folder).exit_code == 0


def test_a_file_of_a_folder_stands_for_it(folder: Path) -> None:
    (folder / RECORDS).unlink()
    assert "records.jsonl: it is missing" in checked(folder / PLAN).stdout


def test_an_unknown_commit_is_a_warning(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mis_bench.environment.commits_here", lambda: CommitsHere(None, None, {}))
    done = bench("run", "--workload", "probe-9-3-4", "--runs", "2", "--warmup-runs", "1")
    found = checked(done.folder)
    assert found.exit_code == 0
    assert "warning: plan.json: environment.commit is unknown" in found.stdout


def test_published_schemas_are_those_of_the_models() -> None:
    published = {path.name: path.read_text() for path in DOCS.glob("*.json")}
    assert published == schemas(), "run python -m mis_bench.artifact docs/schemas"


def test_published_schemas_accept_what_the_commands_write(folder: Path) -> None:
    for name in (PLAN, SUMMARY):
        document = json.loads((folder / name).read_text())
        schema = json.loads((DOCS / f"{document['schema_version']}.json").read_text())
        Draft202012Validator(schema).validate(document)
        document["surprise"] = 1
        assert not Draft202012Validator(schema).is_valid(document)
