"""Our engine and our server, evaluated on the same rows."""

import contextlib
import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from mis_bench.cli import main
from mis_core import Engine
from mis_core.labelled import read_labelled
from mis_testing.options import SMALL_ENGINE
from mis_testing.server import RunningServer

OPTIONS = ",".join(f"{name}={value}" for name, value in SMALL_ENGINE.items())


@pytest.fixture
def evaluate(tmp_path: Path) -> Callable[..., Any]:
    def run(*arguments: str, rows: list[Any]) -> Any:
        data, found = tmp_path / "rows.jsonl", tmp_path / "found.json"
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        done = CliRunner().invoke(main, ["evaluate", *arguments, "--data", str(data), "--json", str(found)])
        assert done.exit_code == 0, done.output
        return json.loads(found.read_text())

    return run


def test_scores_are_the_engines_own_and_those_of_the_server(
    evaluate: Callable[..., Any], engine: Engine, server: RunningServer, checkpoint: Path
) -> None:
    items = [f"a red fox {index}" for index in range(24)]
    rows = [
        {"query": "Is it so? ", "item": item, "labels": ["a", "b"], "label": index % 2}
        for index, item in enumerate(items)
    ]
    found = evaluate(f"here=engine,{OPTIONS}", f"there=mis={server.base_url}", "--model", str(checkpoint), rows=rows)
    scores = engine.score("Is it so? ", items, labels=["a", "b"], apply_softmax=True).scores
    right = np.mean(scores.argmax(axis=1) == np.arange(24) % 2)
    loss = -np.log(scores[np.arange(24), np.arange(24) % 2]).mean()
    mass = engine.score("Is it so? ", items, labels=["a", "b"]).scores.sum(axis=1).mean()
    for target in found["targets"]:
        figures = target["figures"]
        assert figures["accuracy"]["value"] == pytest.approx(right)
        assert figures["log_loss"]["value"] == pytest.approx(loss, rel=1e-5)
        assert figures["label_mass"]["value"] == pytest.approx(mass, rel=1e-3)
    assert found["paired"][0]["flips"] == []


def test_decisions_and_rankings_of_the_engine(
    evaluate: Callable[..., Any], engine: Engine, server: RunningServer, checkpoint: Path
) -> None:
    questions = {
        "red": {"type": "noul", "instructions": "Is it red?"},
        "what": {"type": "choice", "criteria": {"fox": None, "dog": None}},
    }
    states = [f"a red fox {index}" for index in range(12)]
    rows = [{"state": state, "questions": questions, "answers": {"red": True, "what": "dog"}} for state in states]
    dialects = (f"{kind}={server.base_url}" for kind in ("systemone", "openai"))
    whole = evaluate(f"engine,{OPTIONS}", *dialects, "--model", str(checkpoint), rows=rows)
    assert [each["failed"] for each in whole["targets"]] == [0, 0, 0]
    assert whole["paired"][0]["figures"]["log_loss"]["value"] == pytest.approx(0, abs=1e-5)
    found = whole["targets"][0]
    told = [engine.decide(state, questions).answers for state in states]
    red = found["slices"]["question=red"]["figures"]
    assert red["log_loss"]["value"] == pytest.approx(-np.mean([np.log(each["red"].noul) for each in told]), rel=1e-5)
    what = [each["what"].probabilities["dog"] for each in told]
    assert found["slices"]["question=what"]["figures"]["log_loss"]["value"] == pytest.approx(
        -np.log(what).mean(), rel=1e-5
    )
    documents = ["a red fox", "a dog", "rain"]
    rows = [{"query": f"fox {index}", "documents": documents, "relevance": [1, 0, 0]} for index in range(12)]
    found = evaluate(f"engine,{OPTIONS}", "--model", str(checkpoint), rows=rows)["targets"][0]
    ranks = [
        [each.index for each in engine.rerank(f"fox {index}", documents).results].index(0) + 1 for index in range(12)
    ]
    assert found["figures"]["mrr"]["value"] == pytest.approx(np.mean(1 / np.array(ranks)))


def test_classes_of_the_engine_have_the_names_of_the_checkpoint(
    evaluate: Callable[..., Any], engine_factory: Callable[..., Engine], checkpoint_factory: Callable[..., Path]
) -> None:
    names = ("dull", "fine", "splendid")
    folder = checkpoint_factory(head_labels=names)
    inputs = [f"a red fox {index}" for index in range(40)]
    rows = [{"input": text, "label": names[index % 3]} for index, text in enumerate(inputs)]
    found = evaluate(f"engine,{OPTIONS}", "--model", str(folder), rows=rows)["targets"][0]
    told = engine_factory(folder, **SMALL_ENGINE).classify(inputs).probabilities.astype(np.float64)
    right = told[np.arange(40), np.arange(40) % 3]
    assert found["figures"]["log_loss"]["value"] == pytest.approx(-np.log(right).mean(), rel=1e-5)


GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "evaluate.md"


def test_the_guide_has_rows_of_every_kind_and_its_command_works(server: RunningServer, tmp_path: Path) -> None:
    page = GUIDE.read_text()
    rows = re.search(r"^```json\n(.*?)^```", page.split("\n## Rows")[1], re.MULTILINE | re.DOTALL)
    assert rows is not None
    lines = rows[1].splitlines()
    kinds = []
    for number, line in enumerate(lines):
        file = tmp_path / f"{number}.jsonl"
        file.write_text(line)
        kinds.append(read_labelled(file).kind)
    assert kinds == ["score", "rerank", "decide", "classify"]
    command = re.search(r"^mis-bench evaluate (.*)$", page, re.MULTILINE)
    assert command is not None
    changes = {"http://127.0.0.1:30000": server.base_url, "tickets.jsonl": "0.jsonl", "accuracy>=0.9": "accuracy>=0"}
    arguments = command[1]
    for old, new in changes.items():
        assert old in arguments
        arguments = arguments.replace(old, new)
    with contextlib.chdir(tmp_path):
        done = CliRunner().invoke(main, ["evaluate", *shlex.split(arguments)])
    assert done.exit_code == 0, done.output
    assert json.loads((tmp_path / "figures.json").read_text())["targets"][0]["failed"] == 0
    assert "Evaluation" in (tmp_path / "figures.html").read_text()
