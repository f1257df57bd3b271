"""`mis-bench validate-artifacts`: what is valid passes, and every planted fault is found."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from mis_bench.artifacts.base import kinds
from mis_bench.artifacts.schemas import schemas, write_schemas
from mis_bench.checking.files import check_file
from mis_bench.cli import main

DOCS = Path(__file__).parents[3] / "docs" / "schemas"

Fields = dict[str, Any]


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["validate-artifacts", *map(str, arguments)])


def test_what_the_commands_write_is_valid(missions: Path) -> None:
    done = invoke(missions, "--all", "-v")
    assert done.exit_code == 0, done.output
    assert "matrix_results.json: valid mis-score-matrix-v1" in done.stdout
    assert done.stdout.endswith("8 files, 0 faults\n")


def test_what_lies_deeper_is_not_passed_over_in_silence(missions: Path) -> None:
    (missions / "copy.json").write_bytes((missions / "stress" / "stress.json").read_bytes())
    done = invoke(missions)
    assert done.stdout == "1 files, 0 faults\n"
    assert done.stderr == "8 more in folders below were not looked at; --all does.\n"


def test_json_names_every_file_and_fault(missions: Path) -> None:
    (missions / "run" / "run.csv").unlink()
    found = json.loads(invoke(missions / "run", "--json").stdout)
    assert (found["valid"], found["faults"]) == (False, 1)
    assert [(Path(each["path"]).name, each["faults"]) for each in found["files"]] == [
        ("run.json", []),
        ("run.csv", ["is missing"]),
    ]


def test_all_faults_of_all_files_are_listed(missions: Path) -> None:
    for name in ("run/run.json", "stress/stress.json"):
        path = missions / name
        fields = json.loads(path.read_text())
        fields["total_runtime_seconds"] = -1
        fields["run_id"] = ""
        path.write_text(json.dumps(fields))
    done = invoke(missions, "--all")
    assert done.exit_code == 1
    assert done.stdout.count("total_runtime_seconds: ") == done.stdout.count("run_id: ") == 2


@pytest.mark.parametrize("arguments", [["no/such/path"], ["{}"], []])
def test_nothing_to_check_is_a_usage_error(tmp_path: Path, arguments: list[str]) -> None:
    (tmp_path / "other.json").write_text('{"traceEvents": []}')
    assert invoke(*(each.format(tmp_path) for each in arguments)).exit_code == 2


def test_published_schemas_are_those_of_the_models(tmp_path: Path) -> None:
    published = {path.name: path.read_text(encoding="utf-8") for path in DOCS.glob("*.json")}
    hint = "run python -m mis_bench.artifacts.schemas docs/schemas"
    assert published.keys() == schemas().keys(), hint
    assert published == schemas(), hint
    (tmp_path / "old.json").write_text("{}")
    write_schemas(tmp_path)
    assert {path.stem for path in tmp_path.iterdir()} == set(kinds())


def test_published_schemas_accept_what_the_commands_write(stored: Path) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    for path in stored.rglob("*.json"):
        checked = check_file(path)
        schema = json.loads((DOCS / f"{checked.schema}.json").read_text())
        jsonschema.Draft202012Validator.check_schema(schema)
        jsonschema.validate(json.loads(path.read_text()), schema)
