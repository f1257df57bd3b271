"""The folder that `--ray` writes to: what it was made with, and who may add to it. None of this needs a cluster."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from mis_core.config import EngineConfig
from mis_core.errors import ConfigError
from mis_server.cli import main
from mis_server.offline.asked import decisive
from mis_server.offline.folder import JobFolder, everywhere, file_system
from mis_server.offline.places import Place, check_apart, engine_places
from mis_server.offline.query import OfflineQuery
from mis_server.ray.actor import for_actors
from mis_server.ray.job import JobFiles, check_output
from mis_server.ray.parts import sources

PART = "x.jsonl/000000000000000"


def output(folder: Path, **changes: Any) -> JobFolder:
    asked = OfflineQuery(labels=("yes",), **{name: value for name, value in changes.items() if name != "quantization"})
    config = EngineConfig(model="m", quantization=changes.get("quantization", "none"))
    return JobFolder(str(folder), "jsonl", decisive(asked, config))


def begin(output: JobFolder, dtype: str = "auto", *, overwrite: bool = False) -> None:
    output.check(dtype, overwrite=overwrite)
    output.begin()


def test_what_is_there_is_known(tmp_path: Path) -> None:
    first = output(tmp_path / "out")
    begin(first)
    assert first.names() == set()
    first.publish(PART, b"content")
    again = output(tmp_path / "out", batch_size=7)  # which changes no score
    begin(again)
    assert again.names() == {PART}
    again.end()
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["_SUCCESS", "_job.json", "x.jsonl"]
    begin(again, overwrite=True)
    assert again.names() == set()


@pytest.mark.parametrize("change", [{"query": "other"}, {"temperature": 2.0}, {"quantization": "int8"}])
def test_an_output_of_other_arguments_is_not_continued(tmp_path: Path, change: dict[str, Any]) -> None:
    begin(output(tmp_path / "out"))
    with pytest.raises(ConfigError, match=f"was made with other values of {next(iter(change))}; use another"):
        begin(output(tmp_path / "out", **change))
    begin(output(tmp_path / "out", **change), overwrite=True)


def test_an_output_of_another_calibration_is_not_continued(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_text("one")
    asked, config = OfflineQuery(labels=("yes",)), EngineConfig(model="m", calibration=str(path))
    begin(JobFolder(str(tmp_path / "out"), "jsonl", decisive(asked, config)))
    begin(JobFolder(str(tmp_path / "out"), "jsonl", decisive(asked, config)))
    path.write_text("other")
    for other in (config, EngineConfig(model="m", calibration="none")):
        with pytest.raises(ConfigError, match="was made with other values of calibration"):
            begin(JobFolder(str(tmp_path / "out"), "jsonl", decisive(asked, other)))


def test_an_output_that_an_older_version_began_is_not_continued(tmp_path: Path) -> None:
    begin(output(tmp_path / "out"))
    note = tmp_path / "out" / "_job.json"
    note.write_text(
        json.dumps({name: value for name, value in json.loads(note.read_text()).items() if name != "version"})
    )
    with pytest.raises(ConfigError, match="was begun by another version of mis-server: finish it with that one, use"):
        begin(output(tmp_path / "out"))
    begin(output(tmp_path / "out"), overwrite=True)


def test_all_parts_are_made_in_one_type(tmp_path: Path) -> None:
    first = output(tmp_path / "out")
    begin(first)
    assert [first.agree("float32"), first.agree("bfloat16")] == ["float32", "float32"]
    again = output(tmp_path / "out")
    begin(again)
    assert again.agree("bfloat16") == "float32"
    with pytest.raises(ConfigError, match="was made in float32, but this run computes in bfloat16"):
        begin(output(tmp_path / "out"), "bfloat16", overwrite=False)


def test_a_run_ends_when_another_has_taken_its_folder_over(tmp_path: Path) -> None:
    first, second = output(tmp_path / "out"), output(tmp_path / "out")
    begin(first)
    begin(second)
    with pytest.raises(ConfigError, match="Another run is writing"):
        first.publish(PART, b"late")
    second.publish(PART, b"right")
    assert (tmp_path / "out" / f"{PART}.jsonl").read_bytes() == b"right"


def test_a_folder_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    for note in ("", "no JSON", '{"some other": "job"}'):
        if note:
            (tmp_path / "_job.json").write_text(note)
        for overwrite in (False, True):
            with pytest.raises(
                ConfigError, match=r"has files, but no _job\.json of this command; use another --output"
            ):
                begin(output(tmp_path), overwrite=overwrite)
    assert (tmp_path / "thesis.txt").exists()


@pytest.mark.parametrize(
    "name",
    [
        "thesis.txt",
        "x.jsonl/notes.txt",
        "more/_job.json",
        "_unfinished/thesis.txt",
        "2024/000000000000001.jsonl",
        "link",
    ],
)
def test_a_file_of_somebody_else_in_our_folder_is_left_alone(tmp_path: Path, name: str) -> None:
    folder, outside = tmp_path / "out", tmp_path / "outside"
    ours = output(folder)
    begin(ours)
    ours.publish(PART, b"content")
    (outside / "x.jsonl").mkdir(parents=True)
    (outside / f"{PART}.jsonl").write_text("somebody's")
    (folder / name).parent.mkdir(exist_ok=True)
    if name == "link":
        (folder / name).symlink_to(outside, target_is_directory=True)
    else:
        (folder / name).write_text("years of work")
    with pytest.raises(ConfigError, match=r"has files that this command did not write: .*; use another --output, or"):
        begin(ours, overwrite=True)
    assert ours.names() >= {PART}
    assert (outside / f"{PART}.jsonl").read_text() == "somebody's"
    (folder / name).unlink()
    begin(ours, overwrite=True)
    assert ours.names() == set()
    assert not (folder / PART).parent.exists()


def check(folder: Path, source: str, target: str, **engine: str) -> None:
    files = JobFiles(input=everywhere(str(folder / source)), output=everywhere(str(folder / target)), format="jsonl")
    fs, pattern = file_system(files.input)
    check_output(files, sources(fs, pattern), engine_places(EngineConfig(**{"model": str(folder / "model"), **engine})))


def test_an_output_that_is_read_is_refused(tmp_path: Path) -> None:
    for name in ("in/a.jsonl", "out/in/a.jsonl", "model/config.json", "out2/template.jinja", "free/x.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text('"a"\n')
    (tmp_path / "soft").symlink_to("in", target_is_directory=True)
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "a.jsonl").symlink_to(tmp_path / "free" / "x.txt")
    template = str(tmp_path / "out2" / "template.jinja")
    for source, target, message in [
        ("out/in", "out", "is a folder above the input"),
        ("in", "in", "is a folder above the input"),
        ("in/*.jsonl", "in", "is a folder above the input"),
        ("in", "soft", "is a folder above the input"),
        ("soft", "in", "is a folder above the input"),
        ("linked", "free", "is a folder above the input"),
        ("in", "model", "is the model"),
        ("in", "model/scores", "lies in the model"),
        ("in", "out2", "is a folder above the rerank template"),
        ("in", "in/scores", "lies within .*, so the next run"),
        ("in", "soft/scores", "lies within .*, so the next run"),
        ("in/*.jsonl", "in/scores", "lies within .*, so the next run"),
    ]:
        with pytest.raises(ConfigError, match=f"{message}.* use another --output") as caught:
            check(tmp_path, source, target, rerank_template=template)
        assert caught.value.option == "output"
    for source, target in [("in", "out"), ("in/a.jsonl", "in/scores"), ("in", "in/_scores"), ("in", "in2")]:
        check(tmp_path, source, target)


def test_a_refusal_connects_to_no_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    connected: list[object] = []

    def init(address: object, **_: object) -> None:
        connected.append(address)
        raise ConnectionError("none")

    monkeypatch.setattr("ray.init", init)
    (tmp_path / "a.jsonl").write_text('"a"\n')
    arguments = [
        "score",
        "/no/such/model",
        "--ray",
        "here",
        "--query",
        "q",
        "--labels",
        "yes",
        "--input",
        str(tmp_path),
    ]
    for more, message in (
        (("--output", str(tmp_path)), "--output: "),
        (("--output", str(tmp_path / "_out"), "--score-column", "id"), "--score-column: 'id' cannot name"),
    ):
        done = CliRunner().invoke(main, [*arguments, *more])
        assert (done.exit_code, connected) == (1, []), done.output
        assert f"Error: {message}" in done.stderr
    done = CliRunner().invoke(main, [*arguments, "--output", str(tmp_path / "_out")])  # the twin
    assert (done.exit_code, connected) == (1, ["here"])
    assert "there is no cluster to use: none" in done.stderr
    assert not (tmp_path / "_out").exists()


def test_paths_elsewhere_are_compared_too() -> None:
    read = [Place("the input", "bucket/in/a.jsonl", "s3")]
    for path, message in [("bucket/in", "is a folder above"), ("bucket/in/a.jsonl/x", "lies in"), ("bucket", "above")]:
        with pytest.raises(ConfigError, match=message):
            check_apart(read, [path], "s3")
    check_apart(read, ["bucket/inn", "bucket/out"], "s3")
    check_apart(read, ["bucket/in"], "gcs")


def test_actors_get_absolute_paths_and_a_recipes_name_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("generic", "my.jinja"):
        (tmp_path / name).touch()
    for given, wanted in (("my.jinja", str(tmp_path / "my.jinja")), ("generic", "generic")):
        assert for_actors(EngineConfig(model="m", rerank_template=given)).rerank_template == wanted
