"""Tensors are those that transformers takes, whichever files and names a checkpoint has them in."""

import json
from collections.abc import Callable
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from mis_core import Engine
from mis_core.models.config import read_model_config
from mis_core.models.weights import load_decoder
from mis_kernels import from_bits
from mis_testing import tiny_checkpoint
from mis_testing.options import SMALL_ENGINE
from mis_testing.oracle import PointwiseOracle
from mis_testing.tolerances import assert_scores_close

pytestmark = pytest.mark.parity

WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
QUERY, ITEMS, LABELS = [7, 300, 12, 5] * 9, [[5], [9, 8, 400], []], [271, 5, 30]


def rewrite(path: Path, change: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]) -> None:
    save_file(change(load_file(path)), path)


def set_config(folder: Path, **changes: object) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def beside_a_stale_index(folder: Path) -> None:
    other = tiny_checkpoint(folder.parent / "other", seed=2, shards=2)
    for file in other.glob("*.safetensors*"):
        (folder / file.name).write_bytes(file.read_bytes())


def named_by_the_config(folder: Path) -> None:
    other = tiny_checkpoint(folder.parent / "other", seed=2)
    (folder / "weights").mkdir()
    (folder / "weights" / "best.safetensors").write_bytes((other / WHOLE).read_bytes())
    set_config(folder, transformers_weights="weights/best.safetensors")


def of_an_index_named_by_the_config(folder: Path) -> None:
    beside_a_stale_index(folder)
    (folder / INDEX).rename(folder / "best.safetensors.index.json")
    set_config(folder, transformers_weights="best.safetensors.index.json")


def in_a_folder_of_an_index(folder: Path) -> None:
    beside_a_stale_index(folder)
    (folder / WHOLE).unlink()
    (folder / "parts").mkdir()
    index = json.loads((folder / INDEX).read_text())
    for file in sorted(set(index["weight_map"].values())):
        (folder / "parts" / file).write_bytes((folder / file).read_bytes())
        rewrite(folder / file, lambda tensors: {name: tensor * 2 for name, tensor in tensors.items()})
    index["weight_map"] = {name: f"parts/{file}" for name, file in index["weight_map"].items()}
    (folder / INDEX).write_text(json.dumps(index))


def with_only_the_head(folder: Path) -> None:
    rewrite(folder / WHOLE, lambda tensors: tensors | {"lm_head.weight": tensors.pop("model.embed_tokens.weight")})


def without_a_prefix(folder: Path) -> None:
    rewrite(folder / WHOLE, lambda tensors: {name.removeprefix("model."): tensor for name, tensor in tensors.items()})


def with_a_prefix_before_the_head(folder: Path) -> None:
    set_config(folder, tie_word_embeddings=False)
    rewrite(
        folder / WHOLE, lambda tensors: tensors | {"model.lm_head.weight": tensors["model.embed_tokens.weight"] * 2}
    )


KINDS = [
    beside_a_stale_index,
    named_by_the_config,
    of_an_index_named_by_the_config,
    in_a_folder_of_an_index,
    with_only_the_head,
    without_a_prefix,
    with_a_prefix_before_the_head,
]


@pytest.fixture(params=KINDS, ids=lambda kind: kind.__name__)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    made = tiny_checkpoint(tmp_path / "model", seed=1)
    request.param(made)
    return made


@pytest.mark.usefixtures("plain_weights")
def test_weights_are_those_of_transformers(folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).state_dict()
    ours = load_decoder(folder, read_model_config(folder), jnp.dtype("float32"), progress=False)
    for array, name in (
        (ours.embedding, "model.embed_tokens.weight"),
        (ours.head_weight, "lm_head.weight"),
        (ours.norm, "model.norm.weight"),
    ):
        np.testing.assert_array_equal(from_bits(array[...]), theirs[name].numpy(), err_msg=name)
    for layer, down in enumerate(ours.layers.down[...]):
        np.testing.assert_array_equal(down, theirs[f"model.layers.{layer}.mlp.down_proj.weight"].numpy().T)


@pytest.mark.parametrize(
    "folder",
    [
        beside_a_stale_index,
        *(pytest.param(kind, marks=pytest.mark.full) for kind in KINDS[1:]),
    ],
    indirect=True,
    ids=lambda kind: kind.__name__,
)
def test_scores_are_those_of_transformers(folder: Path) -> None:
    with Engine.from_pretrained(folder, progress=False, **SMALL_ENGINE) as engine:
        ours = engine.score(QUERY, ITEMS, LABELS, return_token_logprobs=True).token_logprobs
    theirs = PointwiseOracle(folder).label_logprobs([QUERY + item for item in ITEMS], LABELS)
    assert_scores_close(ours, theirs, "float32", "logprob")
