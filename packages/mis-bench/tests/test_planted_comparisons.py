"""Every fault planted into a comparison is found."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mis_bench.artifacts.comparison import ComparedTarget, Request
from mis_bench.artifacts.judging import Limits
from mis_bench.artifacts.parts import WorkloadPart, prepared
from mis_bench.checking.files import check_file
from mis_bench.comparison.assemble import Evidence, compare
from mis_bench.comparison.series import Series
from mis_bench.environment import environment

SECONDS = {("a", 2): (2.0, 2.1, 2.2), ("a", 4): (1.0, 1.1, 1.2), ("b", 2): (0.6, 0.7, 0.5), ("b", 4): (4.0, 4.5, 4.2)}


@pytest.fixture(scope="module")
def comparison() -> str:
    """A comparison of two targets at two chunk sizes, measured in turn, as JSON."""
    requests = [
        Request(target=target, chunk_items=size, round=number, seconds=seconds)
        for (target, size), times in SECONDS.items()
        for number, seconds in enumerate(times)
    ]
    evidence = Evidence(
        workload=WorkloadPart.of(prepared("probe-5-4-3", softmax=True)),
        targets=[ComparedTarget(name="a"), ComparedTarget(name="b", hourly_cost_usd=2)],
        portable=[Series.of(requests, target, size, 4) for target, size in SECONDS],
        answers={name: [np.full((4, 2), 0.5)] for name in "ab"},
        measured_together=True,
        requests=requests,
    )
    limits = Limits(guardrail_ratio=9)  # within which all rows are
    found = compare(evidence, reference="a", limits=limits, command="mis-bench compare", environment=environment())
    return found.model_dump_json()


def faults(tmp_path: Path, fields: dict[str, Any]) -> tuple[str, ...]:
    path = tmp_path / "comparison.json"
    path.write_text(json.dumps(fields))
    return check_file(path).faults


def test_what_compare_wrote_has_no_fault(comparison: str, tmp_path: Path) -> None:
    assert faults(tmp_path, json.loads(comparison)) == ()


PLANTED: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "slower row wins": (lambda f: f["portable_view"].update(winner=1), "portable_view.winner is 1, but the rows"),
    "slower target wins": (lambda f: f["best_native_view"].update(winner=0), "best_native_view.winner is 0"),
    "invented speed": (
        lambda f: f["portable_view"]["rows"][0]["items_per_second"].update(value=1e6, high=1e6),
        "portable_view.rows.0.items_per_second is not what the requests make it",
    ),
    "invented speed at its best": (
        lambda f: f["best_native_view"]["rows"][1]["items_per_second"].update(value=1e6, high=1e6),
        "best_native_view.rows.1.items_per_second is not",
    ),
    "invented latency": (
        lambda f: f["portable_view"]["rows"][1]["latency"].update(mean_ms=1), "portable_view.rows.1.latency is not",
    ),
    "invented ratio": (
        lambda f: f["best_native_view"]["rows"][1]["ratio"].update(value=9, high=9),
        "best_native_view.rows.1.ratio is not",
    ),
    "cost": (lambda f: f["portable_view"]["rows"][2].update(items_per_usd=1), "rows.2.items_per_usd is not"),
    "another request": (lambda f: f["requests"][1].update(seconds=9), "portable_view.rows.0.items_per_second is not"),
    "hidden failure": (lambda f: f["requests"][1].update(failure="timeout"), "rows.0.success_rate is not"),
    "no requests": (lambda f: f["requests"].clear(), "requests are not those of the rows"),
    "verdict": (
        lambda f: f["portable_view"]["rows"][2].update(eligible=False, reasons=["slow"], within_guardrail=None)
        or f["portable_view"].update(winner=1),
        "portable_view.rows.2 is not judged by the rules",
    ),
    "gate deleted": (lambda f: f["correctness"].pop(), "correctness is not of the targets that ran"),
    "gate moved": (lambda f: f["limits"].update(guardrail_ratio=1), "portable_view.rows.0 is not judged"),
    "gate passed": (lambda f: f["correctness"][1].update(max_abs=0.5), "correctness.1.passed is True"),
    "recommendation": (lambda f: f["recommendations"].append("Take a."), "recommendations are not"),
    "finding": (lambda f: f["findings"].pop(), "findings are not what the views"),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANTED)
def test_planted_faults_are_found(comparison: str, tmp_path: Path, name: str) -> None:
    plant, sentence = PLANTED[name]
    fields = json.loads(comparison)
    plant(fields)
    found = faults(tmp_path, fields)
    assert any(sentence in fault for fault in found), found
