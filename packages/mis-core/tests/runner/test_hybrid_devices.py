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
# Large enough to be spread over devices along `data`. One item is longer than a step takes whole.
LENGTHS = (700, 130, 1, 150, 64, 260, *range(124, 130))
QUERY, *ITEMS = (np.random.default_rng(length).integers(1, 900, length).tolist() for length in LENGTHS)
LABELS = [271, 269, 276, 5]
OPTIONS = {"dtype": "float32", "context_length": 1024, "chunked_prefill_size": 256}
SHAPES: dict[str, dict[str, Any]] = {
    "three value heads to a key head, KV heads copied": {
        "linear_num_key_heads": 4,
        "linear_num_value_heads": 12,
        "num_key_value_heads": 1,
    },
    "three recurrent layers of four, wide keys": {
        "num_hidden_layers": 8,
        "full_attention_interval": 4,
        "linear_num_key_heads": 8,
        "linear_num_value_heads": 8,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 16,
    },
}
MESHES = [[(1, 1), (4, 1)], [(1, 4), (4, 2)]]  # devices along data, devices along tensor


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
        assert scores["warm"] == scores["cold"], mesh
        assert scores["alone"] == scores["cold"][: len(scores["alone"])], mesh
        assert f"dp {len(scores['shards'])} " in mesh


def test_scores_are_those_of_transformers_on_four_devices(tmp_path: Path) -> None:
    path = tiny_checkpoint(tmp_path / "model", "qwen3_5")
    assert_right(path, run(path, [(2, 2)]))


@pytest.mark.full
@pytest.mark.parametrize("meshes", MESHES, ids=["1 x 1 and 4 x 1", "1 x 4 and 4 x 2"])
@pytest.mark.parametrize("shape", SHAPES)
def test_scores_are_those_of_transformers_on_every_mesh(shape: str, meshes: list, tmp_path: Path) -> None:
    path = tiny_checkpoint(tmp_path / "model", "qwen3_5", **SHAPES[shape])
    found = run(path, meshes)
    assert_right(path, found)
    if "dp 4 tp 1" in found:  # tokens are independent, so neither cutting nor spreading them changes a bit
        assert found["dp 4 tp 1"]["cold"] == found["dp 1 tp 1"]["cold"]


@pytest.mark.full
def test_a_hybrid_in_int8_over_devices_agrees_with_one(tmp_path: Path) -> None:
    path = tiny_checkpoint(tmp_path / "model", "qwen3_5", hidden_size=128)
    found = run(path, [(1, 1), (1, 2)], quantization="int8")
    apart = np.abs(np.subtract(found["dp 1 tp 2"]["cold"], found["dp 1 tp 1"]["cold"]))
    assert 0 < apart.max() < 0.05
