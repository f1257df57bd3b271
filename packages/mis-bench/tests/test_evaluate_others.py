"""`mis-bench evaluate` on servers of System One that others published, unchanged; `nox -s evaluate_others`."""

import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from click.testing import CliRunner
from pydantic import BaseModel, ConfigDict, FiniteFloat

from mis_bench.cli import main
from mis_testing.server import RunningServer, free_port, running_command, running_server
from mis_testing.tolerances import TOLERANCES

JEVCOMPAT, SPARROW, TRANSFORMERS = (
    os.environ.get(name, "") for name in ("JEVCOMPAT", "SPARROW_DECIDER", "TRANSFORMERS")
)

needs_jevcompat = pytest.mark.skipif(not JEVCOMPAT, reason="needs jevcompat, which nox -s evaluate_others installs")
needs_sparrow = pytest.mark.skipif(not SPARROW, reason="needs sparrow-decider, which nox -s evaluate_others installs")
needs_transformers = pytest.mark.skipif(
    not TRANSFORMERS, reason="needs transformers serve, which nox -s evaluate_others starts"
)

QUESTIONS = {
    "refund": {"type": "noul", "instructions": "Does the customer want money back?"},
    "team": {
        "type": "choice",
        "instructions": "Which team should answer?",
        "criteria": {"billing": "invoices and payments", "delivery": None, "account": "passwords and names"},
    },
    "anger": {"type": "score", "instructions": "How angry is the customer?", "criteria": ["calm", "cross", "furious"]},
}
SUBJECTS = {"parcel": "delivery", "invoice": "billing", "password": "account", "blender": "delivery"}
MOODS = {
    "arrived, thank you": (False, 0),
    "is not what I ordered": (False, 1),
    "was paid twice, I want my money back": (True, 1),
    "is gone for the third time, give me my money": (True, 2),
}


def decide_rows() -> list[dict[str, Any]]:
    """Rows of three questions each, whose states are texts and objects in turn."""
    rows = []
    for subject, team in SUBJECTS.items():
        for mood, (refund, anger) in MOODS.items():
            text = f"My {subject} {mood}."
            state = {"message": text, "channel": "mail"} if len(rows) % 2 else text
            answers = {"refund": refund, "team": team, "anger": anger}
            kind = "text" if state == text else "object"
            rows.append({"state": state, "questions": QUESTIONS, "answers": answers, "slice": kind})
    return rows


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class FoundInterval(Strict):
    value: FiniteFloat
    low: FiniteFloat | None
    high: FiniteFloat | None


class FoundPart(Strict):
    rows: int
    figures: dict[str, FoundInterval]


class FoundFailure(Strict):
    row: str
    reason: str


class FoundTarget(FoundPart):
    target: str
    failed: int
    slices: dict[str, FoundPart]
    failures: list[FoundFailure]


class FoundExample(Strict):
    row: str
    question: str
    text: str
    truth: str
    decisions: list[str]
    probabilities: list[FiniteFloat]
    change: FiniteFloat


class FoundPair(Strict):
    targets: list[str]
    rows: int
    figures: dict[str, FoundInterval]
    rank_correlation: FiniteFloat | None
    flips: list[FoundExample]
    worst: list[FoundExample]


class FoundFile(Strict):
    """What `--json` writes, as the guide has it."""

    targets: list[FoundTarget]
    paired: list[FoundPair]
    missed: list[str]


class Done(NamedTuple):
    status: int
    said: str
    found: FoundFile | None

    @property
    def targets(self) -> dict[str, FoundTarget]:
        assert self.found is not None, self.said
        return {each.target: each for each in self.found.targets}

    @property
    def reasons(self) -> list[str]:
        (target,) = self.targets.values()
        return [each.reason for each in target.failures]


@pytest.fixture
def evaluate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Done]:
    """`evaluate("systemone=URL")`: the command on rows, and its JSON, which is what the guide says."""
    monkeypatch.delenv("TYPESAFE_API_KEY", raising=False)
    monkeypatch.setenv("NO_PROXY", "*")

    def run(*arguments: str, rows: Sequence[Any] = decide_rows()) -> Done:
        data, found = tmp_path / "rows.jsonl", tmp_path / "found.json"
        found.unlink(missing_ok=True)
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        done = CliRunner().invoke(main, ["evaluate", *arguments, "--data", str(data), "--json", str(found)])
        assert done.exception is None or isinstance(done.exception, SystemExit), done.output
        told = FoundFile.model_validate_json(found.read_text()) if found.exists() else None
        return Done(done.exit_code, " ".join(done.output.split()), told)

    return run


def running(program: str, *arguments: str, ready_path: str | None = None) -> AbstractContextManager[RunningServer]:
    """Start a program of an environment of its own; `PORT` among its arguments is a free one."""
    port = str(free_port())
    command = [program, *(port if each == "PORT" else each for each in arguments)]
    env = {"PYTHONPATH": "", "HF_HUB_OFFLINE": "1"}
    return running_command(command, f"http://127.0.0.1:{port}", env=env, ready_path=ready_path)


def mock(*flags: str) -> AbstractContextManager[RunningServer]:
    return running(JEVCOMPAT, "mock", "--port", "PORT", *flags)


def plain_figures(url: str, model: str) -> dict[str, float]:
    """Accuracy and log loss of what a server says, by the formulas."""
    losses, right = [], []
    for row in decide_rows():
        body = {"model": model, "state": row["state"], "questions": row["questions"]}
        reply = httpx.post(f"{url}/v1/systemone", json=body, timeout=60, trust_env=False).raise_for_status().json()
        for name, truth in row["answers"].items():
            answer = reply["answers"][name]
            if answer["type"] == "noul":
                told = {False: 1 - answer["noul"], True: answer["noul"]}
            else:
                told = answer["probabilities"]
            wanted = truth if isinstance(truth, bool) else str(truth)
            losses.append(-math.log(max(told[wanted] / sum(told.values()), 2**-52)))
            right.append(max(told, key=told.__getitem__) == wanted)
    return {"accuracy": sum(right) / len(right), "log_loss": sum(losses) / len(losses)}


def check_answered(target: FoundTarget) -> None:
    """Every row is answered, and every figure has an interval."""
    rows = len(decide_rows())
    assert (target.rows, target.failed, target.failures) == (rows, 0, [])
    wanted = {"accuracy", "macro_f1", "auc", "log_loss", "brier", "ece", "ece_width", "spearman", "coverage@0.9"}
    assert wanted <= target.figures.keys()
    for name, figure in target.figures.items():
        assert figure.low is not None, name
        assert figure.high is not None, name
        assert figure.low <= figure.high, name
        if name in ("accuracy", "log_loss", "brier"):
            assert figure.low <= figure.value <= figure.high, name
    assert {name: part.rows for name, part in target.slices.items()} == {
        "text": rows // 2, "object": rows // 2, **{f"question={name}": rows for name in QUESTIONS},
    }  # fmt: skip


def check_evaluated(done: Done, url: str, model: str) -> None:
    """The only target was evaluated, and its figures are those of its replies."""
    assert done.status == 0, done.said
    (target,) = done.targets.values()
    check_answered(target)
    for name, value in plain_figures(url, model).items():
        assert target.figures[name].value == pytest.approx(value, rel=1e-6), name


@needs_jevcompat
def test_the_mock_of_jevcompat_is_evaluated(evaluate: Callable[..., Done]) -> None:
    with mock() as server:
        check_evaluated(evaluate(f"systemone={server.base_url}"), server.base_url, "jev-latest")


@needs_jevcompat
def test_its_key_comes_from_the_environment(evaluate: Callable[..., Done], monkeypatch: pytest.MonkeyPatch) -> None:
    with mock("--key", "sesame") as server:
        done = evaluate(f"systemone={server.base_url}")
        assert done.status == 2
        assert f"{server.base_url} refuses the key" in done.said
        monkeypatch.setenv("TYPESAFE_API_KEY", "sesame")
        done = evaluate(f"systemone={server.base_url}")
    assert done.status == 0, done.said
    check_answered(*done.targets.values())


@needs_jevcompat
@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("plain-content-type", None),
        ("models-404", None),
        ("nan", None),  # beside the answers
        ("no-usage", None),
        ("choice-no-confidence", None),
        ("wrong-route", "/v1/systemone answered 404"),
        ("xssi-200", "did not answer with a JSON object: )]}'"),
        ("reject-jev-latest", "Model not served: jev-latest"),
        ("no-null-description", "/v1/systemone answered 422"),
        ("first-question-only", "no answer to 'team'"),
        ("score-keys-1-based", "no answer to 'anger'"),
        ("noul-range", "no probability for each class"),
        ("choice-sum", "probabilities of 'team' sum up to 1."),
        ("score-sum", "probabilities of 'anger' sum up to 0.8"),
    ],
)
def test_a_server_with_a_fault_is_evaluated_or_says_which_it_is(
    evaluate: Callable[..., Done], fault: str, reason: str | None
) -> None:
    with mock("--fault", fault) as server:
        done = evaluate(f"systemone={server.base_url}")
    if reason is None:
        assert done.status == 0, done.said
        check_answered(*done.targets.values())
        return
    assert done.status == 1
    assert len(done.reasons) == len(decide_rows())
    assert all(reason in each for each in done.reasons), done.reasons[0]


@needs_sparrow
def test_sparrow_decider_is_evaluated(evaluate: Callable[..., Done]) -> None:
    with running(SPARROW, "serve", "--port", "PORT") as server:
        check_evaluated(evaluate(f"systemone={server.base_url}"), server.base_url, "any")
        levels = {"type": "score", "criteria": [f"level {number}" for number in range(11)]}
        eleven = {"state": "My parcel is late.", "questions": {"far": levels}, "answers": {"far": 3}}
        done = evaluate(f"systemone={server.base_url}", rows=[*decide_rows(), eleven])
    assert done.status == 1
    (reason,) = done.reasons
    assert "/v1/systemone answered 422" in reason
    assert "2-10 levels" in reason


@pytest.fixture(scope="module")
def theirs(checkpoint: Path) -> Iterator[RunningServer]:
    """`transformers serve` in float32, of the checkpoint that our servers have."""
    address = "--host", "127.0.0.1", "--port", "PORT"
    arguments = "serve", str(checkpoint), *address, "--device", "cpu", "--dtype", "float32"
    with running(TRANSFORMERS, *arguments, ready_path="/health") as server:
        yield server


@needs_transformers
def test_transformers_serve_is_evaluated(
    evaluate: Callable[..., Done], theirs: RunningServer, checkpoint: Path
) -> None:
    check_evaluated(evaluate(f"systemone={theirs.base_url}"), theirs.base_url, str(checkpoint))


@needs_transformers
def test_our_figures_equal_those_of_transformers_with_its_prompt(
    evaluate: Callable[..., Done], theirs: RunningServer, server: RunningServer, checkpoint: Path
) -> None:
    flags = ("--dtype", "float32", "--chunked-prefill-size", "256", "--max-total-tokens", "8192")
    with running_server(checkpoint, *flags, "--decision-prompt", "transformers") as ours:
        done = evaluate(
            f"ours=mis={ours.base_url}",
            f"as_published=systemone={ours.base_url}",
            f"theirs=systemone={theirs.base_url}",
            f"other_prompt=systemone={server.base_url}",
            f"decisions=openai={ours.base_url}",
        )
    assert done.status == 0, done.said
    for target in done.targets.values():
        check_answered(target)
    assert done.found is not None
    pairs = {pair.targets[1]: pair for pair in done.found.paired}
    limit = TOLERANCES["float32", "transformers"].logprob
    assert changes(pairs["as_published"]) == 0
    assert changes(pairs["theirs"]) < limit < changes(pairs["other_prompt"])
    for pair in (pairs["as_published"], pairs["theirs"]):
        assert pair.flips == []
        assert pair.rank_correlation == pytest.approx(1, abs=1e-3)
        for name, figure in pair.figures.items():
            assert figure.value == pytest.approx(0, abs=limit), name


def changes(pair: FoundPair) -> float:
    """The largest change of an answer's loss."""
    return max((abs(each.change) for each in pair.worst), default=0)


@needs_transformers
def test_rows_that_transformers_serve_cannot_answer_fail_singly(
    evaluate: Callable[..., Done], theirs: RunningServer
) -> None:
    rows = [{"query": "Is it so? ", "item": f"{number}\n", "labels": ["A", "B"], "label": 0} for number in range(3)]
    done = evaluate(f"openai={theirs.base_url}", rows=rows)
    assert done.status == 1
    assert len(done.reasons) == 3
    assert all("/v1/completions answered 4" in each for each in done.reasons)
