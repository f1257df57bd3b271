"""A hybrid cut over several devices scores like transformers, and an item keeps its bits whoever its neighbours are."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mis_testing import tiny_checkpoint
from mis_testing.devices import environment_with_devices
from mis_testing.oracle import PointwiseOracle

PROGRAM = Path(__file__).parent.parent / "support" / "hybrid_devices.py"
# Lengths of which no step is left with less than half of its tokens: every other size would be compiled, too. The last
# item is longer than a step takes whole.
QUERY, *ITEMS = (np.random.default_rng(n).integers(1, 900, n).tolist() for n in (700, 130, 1, 150, 64, 260))
LABELS = [271, 269, 276, 5]
OPTIONS = {"dtype": "float32", "context_length": 1024, "chunked_prefill_size": 256}
MESHES = [(1, 1), (2, 1), (4, 1), (1, 2), (1, 4), (4, 2), (2, 4)]
SHAPES: dict[str, dict[str, Any]] = {
    "three value heads to a key head, KV heads copied": {
        "linear_num_key_heads": 4,
        "linear_num_value_heads": 12,
        "num_key_value_heads": 1,
    },
    "three recurrent layers of four, heads of keys wider": {
        "num_hidden_layers": 8,
        "full_attention_interval": 4,
        "linear_num_key_heads": 8,
        "linear_num_value_heads": 8,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 16,
    },
}


def run(path: Path, meshes: list[tuple[int, int]], **options: Any) -> dict[str, Any]:
    request = {"query": QUERY, "items": ITEMS, "label_ids": LABELS}
    arguments = (json.dumps(each) for each in (request, meshes, OPTIONS | options))
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(path), *arguments],
        env=environment_with_devices(8),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


def assert_right(path: Path, found: dict[str, Any]) -> None:
    expected = PointwiseOracle(path).score([QUERY + item for item in ITEMS], LABELS, apply_softmax=True)
    for mesh, scores in found.items():
        np.testing.assert_allclose(scores["cold"], expected, rtol=0, atol=1e-4, err_msg=mesh)
        assert scores["warm"] == scores["alone"] == scores["cold"], mesh


def test_scores_are_those_of_transformers_on_four_devices(tmp_path: Path) -> None:
    path = tiny_checkpoint(tmp_path / "model", "qwen3_5")
    assert_right(path, run(path, [(2, 2)]))


@pytest.mark.full
@pytest.mark.parametrize("shape", SHAPES)
def test_scores_are_those_of_transformers_on_every_mesh(shape: str, tmp_path: Path) -> None:
    path = tiny_checkpoint(tmp_path / "model", "qwen3_5", **SHAPES[shape])
    found = run(path, MESHES)
    assert_right(path, found)
    for mesh, scores in found.items():
        if mesh.endswith("tp 1"):  # tokens are independent, so neither cutting nor spreading them changes a bit
            assert scores == found["dp 1 tp 1"], mesh


@pytest.mark.full
def test_a_hybrid_in_int8_over_devices_agrees_with_one(tmp_path: Path) -> None:
    path = tiny_checkpoint(tmp_path / "model", "qwen3_5", hidden_size=128)
    found = run(path, [(1, 1), (1, 2)], quantization="int8")
    apart = np.abs(np.subtract(found["dp 1 tp 2"]["cold"], found["dp 1 tp 1"]["cold"]))
    assert 0 < apart.max() < 0.05
