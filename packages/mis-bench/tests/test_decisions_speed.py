"""`mis-bench decisions speed` on targets without a model."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from bench_fakes import Done, Fakes, FakeTarget, by_alias, options_of
from mis_bench.targets.target import CallFailed
from mis_bench.workload import Workload

Bench = Callable[..., Done]
SPEED = ("decisions", "speed", "--seconds", "0.1", "--callers", "1,4")
PER_CALL_S, PER_QUESTION_S, STATE_S = 0.002, 0.001, 0.5


def scores(workload: Workload) -> np.ndarray:
    """Depend on the state and each question alone."""
    texts = [f"{workload.query}{item}" for item in workload.items]
    return np.array([[hashlib.sha256(text.encode()).digest()[0] / 256] for text in texts])


@pytest.fixture(autouse=True)
def _answering(fakes: Fakes) -> None:
    """A target called `forgetful` reads the state again for every call; no other one does."""

    def prepare(target: FakeTarget) -> None:
        state = STATE_S if target.spec.alias == "forgetful" else 0
        target.seconds = lambda workload: PER_CALL_S + state + PER_QUESTION_S * workload.num_items
        target.scores = scores

    fakes.prepare = prepare


def test_states_are_new_or_known_questions_together_or_single(bench: Bench) -> None:
    done = bench(*SPEED)
    assert done.status == 0, done.said
    assert [(row.name, row.num_items, row.cache, row.load) for row in done.summary.rows] == [
        ("ticket, 3 questions", 3, "cold", "1 caller"),
        ("ticket, 3 questions, 1 under way", 3, "cold", "1 caller"),
        ("ticket, 3 questions, 4 under way", 3, "cold", "4 callers"),
        ("document, 50 questions", 50, "cold", "1 caller"),
        ("document known, 50 questions", 50, "warm", "1 caller"),
        ("document known, 50 questions one by one", 50, "warm", "1 caller"),
        ("document, first question", 1, "cold", "1 caller"),
        ("document known, next question", 1, "warm", "1 caller"),
        ("options, 1 question", 1, "cold", "1 caller"),
    ]
    assert {row.rounds for row in done.summary.rows} == {5}
    rows = {row.name: row for row in done.summary.rows}
    assert rows["document known, 50 questions one by one"].speed == pytest.approx(1000 / 3)
    assert rows["ticket, 3 questions, 4 under way"].speed == pytest.approx(4 * 3 / 0.005, rel=0.1)


def test_findings_compare_one_request_with_single_questions(bench: Bench, fakes: Fakes) -> None:
    targets = options_of(["ours=engine", "forgetful=engine"])
    done = bench(*SPEED, "--load", "document", *targets, "--slow-questions", "forgetful=10")
    assert done.status == 0, done.said
    one_by_one = 50 * (PER_CALL_S + PER_QUESTION_S) / (PER_CALL_S + 50 * PER_QUESTION_S)
    forgetful = 50 * (PER_CALL_S + STATE_S + PER_QUESTION_S) / (PER_CALL_S + 50 * PER_QUESTION_S)
    together = 5 * (PER_CALL_S + STATE_S + 10 * PER_QUESTION_S) / (PER_CALL_S + 50 * PER_QUESTION_S)
    found = [each for each in done.summary.findings if each.startswith("document known, 50 questions-ours: ")]
    assert [float(each.split(": ")[1].split(" times")[0]) for each in found] == pytest.approx(
        [one_by_one, together, forgetful], rel=0.01
    )
    assert found[2].endswith("the questions/s of document known, 10 questions one by one-forgetful.")
    assert "forgetful was asked 10 questions of a state at most." in done.said
    assert max(workload.num_items for workload in by_alias(fakes)["forgetful"].sent) == 10
    assert all(row.max_abs == 0 for row in done.summary.rows)


def test_what_a_target_refuses_is_skipped_and_other_answers_fail(bench: Bench, fakes: Fakes) -> None:
    prepared = fakes.prepare

    def refuse(_number: int, workload: Workload) -> None:
        if "@255" in workload.name:
            raise CallFailed("rejected", "Too many options.")

    def prepare(target: FakeTarget) -> None:
        prepared(target)
        if target.spec.alias == "peer":
            target.before = refuse
            target.scores = lambda workload: np.clip(scores(workload) + 0.1 * (workload.num_items == 3), 0, 1)

    fakes.prepare = prepare
    done = bench(*SPEED, "--load", "options", "--load", "ticket", *options_of(["ours=engine", "peer=engine"]))
    rows = {row.name: row for row in done.summary.rows}
    assert rows["options, 1 question-peer"].status == "skipped"
    assert rows["ticket, 3 questions-peer"].status == "failed"
    assert rows["ticket, 3 questions-ours"].status == "ok"
    assert done.status == 1


def test_recorded_requests_are_sent_by_one_and_by_eight(bench: Bench, tmp_path: Path) -> None:
    file = tmp_path / "requests.jsonl"
    question = {"type": "noul", "instructions": "Is it?"}
    lines = [{"state": f"Text {number}.", "questions": {"a": question, "b": question}} for number in range(16)]
    file.write_text("\n".join(map(json.dumps, lines)))
    done = bench(*SPEED, "--load", "options", "--requests", str(file), "--rounds", "2")
    assert done.status == 0, done.said
    rows = {row.name: row for row in done.summary.rows}
    one, eight = (rows[f"recorded, {count} under way"] for count in (1, 8))
    assert (one.calls, one.num_items) == (32, 32)
    assert one.speed == pytest.approx(2 / 0.004)
    assert eight.speed == pytest.approx(8 * 2 / 0.004)


@pytest.mark.parametrize(
    ("options", "message"),
    [(["--slow-questions", "other=3"], "'other' is not a target"), (["--requests", "nowhere"], "does not exist"),
     (["--model", "a", "--model", "b"], "one --model")],
)  # fmt: skip
def test_what_cannot_be_measured_is_refused(bench: Bench, options: list[str], message: str) -> None:
    done = bench(*SPEED, *options)
    assert done.status == 2
    assert message in done.said
