"""The folder that `--ray` writes to: what it was made with, and who may add to it. None of this needs a cluster."""

import json
from pathlib import Path
from typing import Any

import pytest

from mis_core.config import EngineConfig
from mis_core.errors import ConfigError
from mis_server.offline.asked import Asked, decisive
from mis_server.offline.folder import Output

PART = "x.jsonl/000"


def output(folder: Path, **changes: Any) -> Output:
    asked = Asked(labels=("yes",), **{name: value for name, value in changes.items() if name != "quantization"})
    config = EngineConfig(model="m", quantization=changes.get("quantization", "none"))
    return Output(str(folder), "jsonl", decisive(asked, config))


def test_what_is_there_is_known(tmp_path: Path) -> None:
    first = output(tmp_path / "out")
    first.begin("auto", overwrite=False)
    assert first.names() == set()
    first.publish(PART, b"content")
    again = output(tmp_path / "out", batch_size=7)  # which changes no score
    again.begin("auto", overwrite=False)
    assert again.names() == {"x.jsonl/000"}
    again.end()
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["_SUCCESS", "_job.json", "x.jsonl"]
    again.begin("auto", overwrite=True)
    assert again.names() == set()


@pytest.mark.parametrize("change", [{"query": "other"}, {"temperature": 2.0}, {"quantization": "int8"}])
def test_an_output_of_other_arguments_is_not_continued(tmp_path: Path, change: dict[str, Any]) -> None:
    output(tmp_path / "out").begin("auto", overwrite=False)
    with pytest.raises(ConfigError, match=f"was made with other values of {next(iter(change))}; use another"):
        output(tmp_path / "out", **change).begin("auto", overwrite=False)
    output(tmp_path / "out", **change).begin("auto", overwrite=True)


def test_an_output_that_an_older_version_began_is_not_continued(tmp_path: Path) -> None:
    output(tmp_path / "out").begin("auto", overwrite=False)
    note = tmp_path / "out" / "_job.json"
    note.write_text(
        json.dumps({name: value for name, value in json.loads(note.read_text()).items() if name != "version"})
    )
    with pytest.raises(ConfigError, match="was begun by another version of mis-server: finish it with that one, use"):
        output(tmp_path / "out").begin("auto", overwrite=False)
    output(tmp_path / "out").begin("auto", overwrite=True)


def test_all_parts_are_made_in_one_type(tmp_path: Path) -> None:
    first = output(tmp_path / "out")
    first.begin("auto", overwrite=False)
    assert [first.agree("float32"), first.agree("bfloat16")] == ["float32", "float32"]
    again = output(tmp_path / "out")
    again.begin("auto", overwrite=False)
    assert again.agree("bfloat16") == "float32"
    with pytest.raises(ConfigError, match="was made in float32, and this run computes in bfloat16"):
        output(tmp_path / "out").begin("bfloat16", overwrite=False)


def test_a_run_ends_when_another_has_taken_its_folder_over(tmp_path: Path) -> None:
    first, second = output(tmp_path / "out"), output(tmp_path / "out")
    first.begin("auto", overwrite=False)
    second.begin("auto", overwrite=False)
    with pytest.raises(ConfigError, match="is written by another run now"):
        first.publish(PART, b"late")
    second.publish(PART, b"right")
    assert (tmp_path / "out" / "x.jsonl" / "000.jsonl").read_bytes() == b"right"


def test_a_folder_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    for overwrite in (False, True):
        with pytest.raises(ConfigError, match=r"has files, but no _job\.json; use another --output"):
            output(tmp_path).begin("auto", overwrite=overwrite)
    assert (tmp_path / "thesis.txt").exists()
