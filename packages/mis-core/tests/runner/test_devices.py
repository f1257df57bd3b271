"""A model cut over several devices scores like a model on one: by KV head, by token, and by both."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mis_testing import tiny_checkpoint
from mis_testing.tolerances import assert_scores_close

PROGRAM = Path(__file__).parent.parent / "support" / "many_devices.py"
MODELS = {
    "qwen3, 8 KV heads": {"family": "qwen3", "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 16},
    "qwen2, 2 KV heads of 7": {
        "family": "qwen2",
        "hidden_size": 448,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
    },
    "llama, untied": {
        "family": "llama",
        "hidden_size": 256,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "tie_word_embeddings": False,
    },
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("model", MODELS)
def test_every_mesh_agrees_with_one_device(model: str, dtype: str, tmp_path: Path) -> None:
    path = tiny_checkpoint(tmp_path / "model", **MODELS[model])
    env = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(path), dtype], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.strip().splitlines()[-1])
    alone = found.pop("dp 1 tp 1")
    assert len(found) == 7
    for mesh, scores in found.items():
        assert_scores_close(np.array(scores["softmax"]), np.array(alone["softmax"]), dtype, reference="pointwise")
        if dtype == "float32":
            np.testing.assert_allclose(scores["logprobs"], alone["logprobs"], atol=1e-5, rtol=1e-5, err_msg=mesh)
        if mesh.endswith("tp 1"):  # tokens are independent, so cutting them changes no bit
            assert scores["bits"] == alone["bits"], mesh
    assert alone["share_of_weights"] == 1
    assert found["dp 1 tp 4"]["share_of_weights"] < 0.4
    assert found["dp 8 tp 1"]["share_of_weights"] == 1
