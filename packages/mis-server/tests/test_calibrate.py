"""`mis-server calibrate`, and what is served with its file: the same bits wherever results are made."""

import dataclasses
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest
from click.testing import CliRunner

from mis_core import Engine
from mis_core.calibration import Calibrations
from mis_core.errors import ConfigError
from mis_core.labelled import Row, groups_of, read_labelled
from mis_core.tasks.path.service import Answered, ThreadedService
from mis_server.cli import main
from mis_server.offline.examples import Collected, Collector, RowOptions, requests
from mis_server.service import json_reply
from mis_testing.options import SMALL_ENGINE
from mis_testing.server import running_server

ENGINE = ("--dtype", "float32", "--skip-warmup", "--chunked-prefill-size", "256", "--max-total-tokens", "8192")
QUERY = "What follows is about one of two animals. Which is it? "
LABELS = ["yes", "no"]
CHOICE: Any = {"type": "choice", "instructions": "Which?", "criteria": {"cat": "a pet", "dog": None}}
LEVELS: Any = {"type": "score", "instructions": "How wet?", "criteria": ["dry", "wet", "drowned"]}
NOUL: Any = {"type": "noul", "instructions": "Is it about animals?"}


def write(path: Path, rows: Sequence[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def score_rows(count: int) -> list[dict[str, Any]]:
    """Rows whose label has nothing to do with the model, which is sure of the rarer one."""
    return [
        {"query": QUERY, "item": f"Animal {number}.", "labels": LABELS, "label": LABELS[number % 3 != 0]}
        for number in range(count)
    ]


@pytest.fixture(scope="module")
def calibrated(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that the command has written."""
    folder = tmp_path_factory.mktemp("calibrated")
    others = [row | {"labels": ["no", "yes"], "label": 0} for row in score_rows(12)]
    others[0]["label"] = 1
    data, output = write(folder / "data.jsonl", [*score_rows(60), *others]), folder / "c.json"
    done = CliRunner().invoke(main, ["calibrate", str(checkpoint), str(data), "--output", str(output), *ENGINE])
    assert done.exit_code == 0, done.output
    assert f"Calibration written to {output}" in done.output
    assert "score (yes, no), 60 rows:" in done.output
    return output


def test_the_command_fits_what_rows_say(calibrated: Path) -> None:
    entry, other = Calibrations.read(calibrated).entries  # one for each set of labels
    assert (other.rows, other.labels) == (12, ("no", "yes"))
    assert (entry.rows, entry.groups, entry.labels) == (60, 60, ("yes", "no"))
    assert entry.calibrated.log_loss < entry.raw.log_loss
    assert entry.begins  # all rows have one query


def test_served_offline_and_python_have_the_same_bits(
    calibrated: Path, checkpoint: Path, engine: Engine, tmp_path: Path
) -> None:
    items = ["Animal 1.", "A cat.", "A dog.", "Rain."]
    body = {"query": QUERY, "items": items, "labels": LABELS, "apply_softmax": True}
    with Engine.from_pretrained(checkpoint, **SMALL_ENGINE, calibration=str(calibrated)) as ours:
        found = ours.score(**body)
        raw = ours.score(**body, calibration="none")
    digest = Calibrations.read(calibrated).entries[0].digest
    assert (found.calibration, raw.calibration) == (digest, None)
    without = engine.score(**body)
    assert (raw.scores == without.scores).all()
    assert (found.scores != raw.scores).all()
    with running_server(checkpoint, *ENGINE, "--calibration", str(calibrated)) as server:
        assert "Calibration: " in server.stderr
        with httpx.Client(base_url=server.base_url, trust_env=False, timeout=60) as http:
            reply = http.post("/v1/score", json=body).json()
            alone = [http.post("/v1/score", json=body | {"items": [item]}).json()["scores"][0] for item in items]
            off = http.post("/v1/score", json=body | {"calibration": "none"}).json()
            other = http.post("/v1/score", json=body | {"query": "Else? "}).json()
            plain = http.post("/v1/score", json=body | {"apply_softmax": False}).json()
            decision = http.post("/v1/systemone", json={"state": "Rain.", "questions": {"n": NOUL}})
            ranking = http.post("/v1/rerank", json={"query": "cats", "documents": ["A cat."]})
    assert reply["calibration"] == digest
    assert reply["scores"] == alone == found.scores.tolist()
    assert (off["scores"], off["calibration"]) == (raw.scores.tolist(), None)
    assert other["calibration"] is plain["calibration"] is None
    assert decision.json()["x_calibration"] == {"n": None}
    assert ranking.json()["calibration"] is None
    file = write(tmp_path / "items.jsonl", [{"query": QUERY, "item": item} for item in items])
    command = ["score", str(checkpoint), "--items", str(file), "--labels", *LABELS, "--apply-softmax", *ENGINE]
    done = CliRunner().invoke(main, [*command, "--calibration", str(calibrated)])
    assert done.exit_code == 0, done.output
    lines = [json.loads(line) for line in (tmp_path / "items.scores.jsonl").read_text().splitlines()]
    assert [line["scores"] for line in lines] == reply["scores"]


@pytest.mark.full
def test_a_calibration_of_another_model_ends_the_start_or_warns(
    calibrated: Path, checkpoint: Path, tmp_path: Path
) -> None:
    other = Path(shutil.copytree(checkpoint, tmp_path / "model"))
    weights = bytearray((other / "model.safetensors").read_bytes())
    weights[len(weights) // 2] ^= 1
    (other / "model.safetensors").write_bytes(weights)
    shutil.copy(calibrated, other / "mis-calibration.json")
    why = r"--calibration: .* was fitted to another model, which differs in weights"
    with pytest.raises(RuntimeError, match=why), running_server(other, *ENGINE):
        pass
    body = {"query": QUERY, "items": ["A cat."], "labels": LABELS, "apply_softmax": True}
    with running_server(other, *ENGINE, "--calibration-mismatch", "warn") as server:
        reply = httpx.post(f"{server.base_url}/v1/score", json=body, trust_env=False, timeout=60)
    assert reply.headers["x-mis-calibration"] == "mismatch"
    assert reply.json()["calibration"]


@pytest.fixture
def collect(engine: Engine, tmp_path: Path) -> Callable[..., Any]:
    async def collect(rows: Sequence[Any], **options: Any) -> tuple[dict[str, Collected], tuple[Row, ...]]:
        labelled = read_labelled(write(tmp_path / "data.jsonl", rows))
        limits = dataclasses.replace(engine.limits, identified=True)
        model = ThreadedService(engine.submit, limits, lambda: engine.tokenizer)
        collector = Collector(model, RowOptions(**options))
        for part in requests(labelled.rows):
            await collector.ask(part)
        return {each.title: each for each in collector.found.values()}, labelled.rows

    return collect


@pytest.mark.anyio
async def test_scores_are_collected_in_the_order_of_rows(collect: Any, engine: Engine) -> None:
    rows = score_rows(5)
    rows.insert(2, {"query": "Else? ", "item": "x", "labels": LABELS, "label": 1})
    found, read = await collect(rows)
    assert len(found) == 1
    examples = found["score"].examples(np.ones(6), groups_of(read))
    assert examples.right.tolist() == [0, 1, 1, 1, 0, 1]
    for row, logprobs in zip(rows, examples.logprobs, strict=True):
        alone = engine.score(row["query"], [row["item"]], labels=LABELS, apply_softmax=True).scores[0]
        np.testing.assert_allclose(np.exp(logprobs), alone, rtol=1e-6)


@pytest.mark.anyio
async def test_each_question_is_collected_in_the_order_it_is_read(collect: Any, engine: Engine) -> None:
    questions = {"n": NOUL, "c": CHOICE, "s": LEVELS}
    rows = [
        {"state": "A cat.", "questions": questions, "answers": {"n": True, "c": "cat", "s": 0}},
        {"state": "A dog.", "questions": questions, "answers": {"n": False, "c": "dog", "s": "drowned"}},
    ]
    found, _ = await collect(rows)
    assert {title: each.right for title, each in found.items()} == {
        "decide, n": [0, 1], "decide, c": [0, 1], "decide, s": [0, 2],
    }  # fmt: skip
    assert found["decide, c"].names == ("cat", "dog")
    answers = engine.decide("A cat.", questions).answers
    assert np.exp(found["decide, n"].logprobs[0][0]) == pytest.approx(answers["n"].noul, rel=1e-6)
    wanted = list(answers["c"].probabilities.values())
    np.testing.assert_allclose(np.exp(found["decide, c"].logprobs[0]), wanted, rtol=1e-6)


@pytest.mark.anyio
async def test_documents_are_relevant_from_a_threshold_on(collect: Any, engine: Engine) -> None:
    rows = [{"query": "cats", "documents": ["a", "b", "c"], "relevance": [0, 1, 2]}]
    found, read = await collect(rows, relevant_from=2)
    examples = found["rerank"].examples(np.ones(1), groups_of(read))
    assert examples.right.tolist() == [0, 0, 1]
    ranked = {each.index: each.relevance_score for each in engine.rerank("cats", ["a", "b", "c"]).results}
    np.testing.assert_allclose(np.exp(examples.logprobs[:, 1]), [ranked[i] for i in range(3)], rtol=1e-6)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"state": "s", "questions": {"c": CHOICE}, "answers": {"c": "bird"}}, "answers.c must be one of cat, dog"),
        ({"state": "s", "questions": {"n": NOUL}, "answers": {"n": "yes"}}, "answers.n must be true or false"),
        ({"state": "s", "questions": {"s": LEVELS}, "answers": {"s": 3}}, "answers.s must be a level from 0 to 2"),
        ({"state": "s", "questions": {"n": {"type": "noul"}}, "answers": {}}, "row 1: .*n.* needs"),
        ({"query": "", "item": "a", "labels": LABELS, "label": 0}, "row 1: query must not be empty"),
        ({"query": "q", "item": "a", "labels": ["yes", "yes"], "label": 0}, "two different texts"),
        ({"input": "a", "label": "x"}, "row 1: .*no classification head"),
    ],
)
async def test_a_row_that_cannot_be_asked_is_named(collect: Any, row: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as refused:
        await collect([row])
    assert refused.value.option == "data"


@pytest.mark.full
def test_what_cannot_be_fitted_is_said(checkpoint: Path, tmp_path: Path) -> None:
    data = write(tmp_path / "data.jsonl", score_rows(9))
    done = CliRunner().invoke(main, ["calibrate", str(checkpoint), str(data), *ENGINE])
    assert done.exit_code == 1
    assert "Error: DATA: Nothing can be fitted. score (yes, no): has 9 rows; at least 10 are needed" in done.output


def test_unreadable_data_is_reported_before_a_model_is_loaded(tmp_path: Path) -> None:
    data = write(tmp_path / "data.jsonl", [])
    done = CliRunner().invoke(main, ["calibrate", "no model", str(data)])
    assert (done.exit_code, f"Error: DATA: {data}: has no rows." in done.output) == (1, True)
    done = CliRunner().invoke(main, ["calibrate", "no model"])
    assert (done.exit_code, "DATA is missing" in done.output) == (2, True)


@pytest.mark.parametrize("mismatched", [True, False])
def test_a_reply_says_that_its_calibration_is_of_another_model(mismatched: bool) -> None:
    reply = json_reply({}, Answered(SimpleNamespace(requests=()), (), None, {"device": 1.0}, mismatched))
    assert reply.headers.get("x-mis-calibration") == ("mismatch" if mismatched else None)
    assert reply.headers["server-timing"] == "device;dur=1.0"
