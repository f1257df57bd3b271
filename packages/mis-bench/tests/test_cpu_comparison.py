"""The comparison of targets on one CPU, as a user runs it."""

import json
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "cpu_comparison.py"


def test_targets_are_compared_and_those_that_cannot_run_are_listed(
    checkpoint_factory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "report.json"
    chosen = ["--targets", "torch serial", "torch shared cache", "vllm", "--json", str(report)]
    sizes = ["--query", "30", "--items", "6", "--slow-items", "2", "--rounds", "1"]
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--model", str(checkpoint_factory()), *sizes, *chosen])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    found = json.loads(report.read_text())
    assert found["product_dtype"] in ("bfloat16", "float32")
    targets = found["targets"]
    assert set(targets) == {"torch serial", "torch shared cache", "vllm"}
    assert targets["torch serial"]["items_per_second"] > 0
    assert "built for CPUs" in targets["vllm"]["unavailable"]
    table = capsys.readouterr().out
    assert "| torch shared cache |" in table
    assert "| vllm | cannot run:" in table


def test_the_limit_is_that_of_the_type_that_the_cpu_multiplies_faster() -> None:
    script = runpy.run_path(str(SCRIPT))
    names = script["faster_type"].__globals__
    for bfloat16, expected in ((2.0, "bfloat16"), (0.5, "float32")):
        names["product_rate"] = lambda dtype, *_sizes, rate=bfloat16: rate if dtype == "bfloat16" else 1.0
        assert script["faster_type"]() == expected


def test_operations_are_counted_once() -> None:
    script = runpy.run_path(str(SCRIPT))
    config = SimpleNamespace(embed=4, heads=2, kv_heads=1, head_dim=2, mlp=8, layers=1)
    # One layer: query, key and value of both tokens (4 x 8), the rest for the scored one (4 x 4 + 3 x 4 x 8);
    # two products of attention over 1 + 2 keys, of width 4; one label.
    expected = 2 * (2 * 4 * 8 + (4 * 4 + 3 * 4 * 8)) + 4 * 4 * 3 + 2 * 4
    assert script["counted_operations"](config, 1, 1, 1, 1) == expected
