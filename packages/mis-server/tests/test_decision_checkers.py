"""jevbench and decguard, which look for incoherent decisions, against a real server; `nox -s decision_clients`."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from mis_testing.server import RunningServer, running_server

JEVBENCH, DECGUARD = os.environ.get("JEVBENCH", ""), os.environ.get("DECGUARD", "")
INVARIANT = ("sorted", "reversed", "independent")
"""The orders in which no permutation of options changes what the model reads."""
ISOLATION = ("batch_solo", "batch_order", "batch_content", "batch_size_sweep", "duplicate_question")
"""jevbench's relations between a question's answers in different company."""

needs_jevbench = pytest.mark.skipif(not JEVBENCH, reason="needs jevbench, which nox -s decision_clients installs")
needs_decguard = pytest.mark.skipif(not DECGUARD, reason="needs decguard, which nox -s decision_clients installs")


def run(*command: str) -> str:
    environment = os.environ | {"NO_PROXY": "*"}
    environment.pop("PYTHONPATH", None)  # it has an environment of its own
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def deviations(server: RunningServer, folder: Path, *relations: str) -> list[float]:
    """How far each test of jevbench-mini in these relations is from equality, as a total variation."""
    report = folder / "report.json"
    asked = ("--url", f"{server.base_url}/v1/systemone", "--model", "jev-latest", "--relations", ",".join(relations))
    run(JEVBENCH, "eval", "--suite", "jevbench-mini", *asked, "--no-cache", "--concurrency", "4", "--out", str(report))
    result = json.loads(report.read_text())["result"]
    assert result["errors"] == []
    assert {outcome["relation"] for outcome in result["outcomes"]} == set(relations)
    return [outcome["deviation"] for outcome in result["outcomes"]]


@needs_jevbench
def test_no_answer_depends_on_its_company(with_codes: Path, tmp_path: Path) -> None:
    with running_server(with_codes, "--dtype", "float32", "--chunked-prefill-size", "512") as server:
        assert set(deviations(server, tmp_path, *ISOLATION)) == {0}
        # As it reads them in the given order, their order counts: the other test can fail.
        assert max(deviations(server, tmp_path, "option_permutation")) > 0.01


@needs_jevbench
@pytest.mark.parametrize("order", INVARIANT)
def test_options_reordered_and_levels_reversed_change_nothing(with_codes: Path, tmp_path: Path, order: str) -> None:
    flags = ("--dtype", "float32", "--chunked-prefill-size", "512", "--choice-order", order)
    with running_server(with_codes, *flags) as server:
        assert max(deviations(server, tmp_path, "option_permutation")) <= 1e-6


@needs_decguard
@pytest.mark.parametrize("order", INVARIANT)
def test_no_permutation_of_options_changes_a_verdict(with_codes: Path, tmp_path: Path, order: str) -> None:
    flags = ("--dtype", "float32", "--chunked-prefill-size", "512", "--choice-order", order)
    states = ("The blender arrived damaged.", "Where is my parcel?", "I was charged twice.", "Thanks, all is well.")
    cases = [json.dumps({"id": f"case {number}", "input": state}) for number, state in enumerate(states)]
    (tmp_path / "cases.jsonl").write_text("\n".join(cases))
    with running_server(with_codes, *flags) as server:
        contract: dict[str, Any] = {
            "schema_version": "0.1",
            "decision": {
                "type": "choice",
                "name": "resolution",
                "description": "What should happen with this request?",
                "options": ["refund", "reject", "review", "replace", "escalate"],
            },
            "backend": {"provider": "systemone", "model": "jev-latest", "url": f"{server.base_url}/v1/systemone"},
            "dataset": "cases.jsonl",
            "properties": {"option_order": {"max_tv_distance": 1e-6, "max_flip_rate": 0, "samples": 10}},
        }
        (tmp_path / "contract.json").write_text(json.dumps(contract))
        told = run(DECGUARD, "fuzz", str(tmp_path / "contract.json"))
    assert "40 compared · 0 violating (0.0%) · flips 0 (0.0%)" in told, told
