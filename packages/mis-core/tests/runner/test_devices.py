"""A model cut over several devices scores like a model on one: by KV head, by token, and by both."""

import itertools
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from _pytest.mark import ParameterSet

from mis_testing import tiny_checkpoint
from mis_testing.devices import environment_with_devices
from mis_testing.tolerances import TINY_LOGITS, assert_scores_close

PROGRAM = Path(__file__).parent.parent / "support" / "many_devices.py"
MODELS = {
    "qwen3, 8 KV heads": {"family": "qwen3", "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 16},
    "qwen2, 2 KV heads of 7, classification head": {
        "family": "qwen2",
        "head_labels": tuple(f"class {row}" for row in range(128)),
        "hidden_size": 448,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
    },
    "llama, untied, biases": {
        "family": "llama",
        "hidden_size": 256,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "tie_word_embeddings": False,
        "attention_bias": True,
        "mlp_bias": True,
    },
}
DTYPES = ("float32", "bfloat16")
MESHES = [(1, 4), (8, 1), (2, 4), (1, 2), (2, 1), (1, 8), (4, 1)]  # devices along data, devices along tensor
FEW = {("qwen2, 2 KV heads of 7, classification head", "bfloat16"): [(2, 4)]}


def _cases() -> Iterator[ParameterSet]:
    """Yield one mesh along both axes, and all for each model and type, for full runs."""
    for model, dtype in itertools.product(MODELS, DTYPES):
        yield pytest.param(model, dtype, MESHES, id=f"{model}, {dtype}, all meshes", marks=pytest.mark.full)
    for (model, dtype), meshes in FEW.items():
        yield pytest.param(model, dtype, meshes, id=f"{model}, {dtype}")


CASES = list(_cases())


@pytest.mark.parametrize(("model", "dtype", "meshes"), CASES)
def test_every_mesh_agrees_with_one_device(model: str, dtype: str, meshes: Sequence, tmp_path: Path) -> None:
    path = tiny_checkpoint(tmp_path / "model", **MODELS[model])
    cut = json.dumps([(1, 1), *meshes])
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(path), dtype, cut],
        env=environment_with_devices(8),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.strip().splitlines()[-1])
    alone = found.pop("dp 1 tp 1")
    assert len(found) == len(meshes)
    for mesh, scores in found.items():
        assert_scores_close(np.array(scores["softmax"]), np.array(alone["softmax"]), dtype, reference="pointwise")
        if dtype == "float32":
            np.testing.assert_allclose(scores["logprobs"], alone["logprobs"], rtol=0, atol=TINY_LOGITS, err_msg=mesh)
            tops = [each["top_logprobs"] for each in (scores, alone)]
            np.testing.assert_allclose(*tops, atol=TINY_LOGITS, err_msg=mesh)
            assert scores["next_ids"] == alone["next_ids"], mesh
        if mesh.endswith("tp 1"):  # tokens are independent, so neither cutting nor spreading them changes a bit
            assert scores["bits"] == alone["bits"], mesh
            assert scores["spread_bits"] == alone["spread_bits"], mesh
            assert scores["share_of_weights"] == 1, mesh
        if mesh.endswith("tp 4"):
            assert scores["share_of_weights"] < 0.4, mesh
    assert alone["share_of_weights"] == 1
