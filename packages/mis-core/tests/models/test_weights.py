"""Loading checkpoints: shards, types, and broken files, each refused by name."""

import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from mis_core import Engine
from mis_core.errors import ModelError
from mis_core.models.config import read_model_config
from mis_core.models.weights import load_decoder
from mis_kernels import from_bits
from mis_kernels.backends.xla.backend import XlaCpuBackend
from mis_testing import tiny_checkpoint
from mis_testing.options import SMALL_ENGINE
from mis_testing.tolerances import TINY_PROBABILITIES

FILE = "model.safetensors"


pytestmark = pytest.mark.usefixtures("plain_weights")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tiny_checkpoint(tmp_path / "model", family="qwen3", num_hidden_layers=2)


def load(directory: Path, dtype: str = "float32"):
    return load_decoder(directory, read_model_config(directory), jnp.dtype(dtype), progress=False)


def rewrite(directory: Path, change) -> None:
    tensors = load_file(directory / FILE)
    change(tensors)
    save_file(tensors, directory / FILE)


def test_several_shards_hold_the_same_weights(tmp_path: Path) -> None:
    one = load(tiny_checkpoint(tmp_path / "one", shards=1, seed=3))
    three = load(tiny_checkpoint(tmp_path / "three", shards=3, seed=3))
    np.testing.assert_array_equal(one.layers.qkv[...], three.layers.qkv[...])


@pytest.mark.parametrize("stored", ["float16", "bfloat16", "float32"])
def test_every_stored_type_becomes_the_wanted_one(tmp_path: Path, stored: str) -> None:
    directory = tiny_checkpoint(tmp_path / "model", dtype=stored)
    for wanted in ("bfloat16", "float32"):
        assert from_bits(load(directory, wanted).embedding[...]).dtype == jnp.dtype(wanted)


def test_float64_is_read(directory: Path) -> None:
    before = load(directory)
    rewrite(
        directory, lambda tensors: tensors.update({name: each.astype(np.float64) for name, each in tensors.items()})
    )
    np.testing.assert_array_equal(load(directory).layers.qkv[...], before.layers.qkv[...])


@pytest.mark.parametrize("is_within", [False, True])
def test_layers_without_number_are_refused_at_once(directory: Path, is_within: bool) -> None:
    config = json.loads((directory / "config.json").read_text()) | {"num_hidden_layers": 10**12}
    if is_within:
        config = {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": config}
    (directory / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"num_hidden_layers = 1000000000000, but the weights have 4 layers of"):
        load(directory)


def test_an_adapter_beside_a_model_is_refused(directory: Path) -> None:
    (directory / "adapter_config.json").write_text("{}")
    with pytest.raises(ModelError, match=r"adapter_config\.json: .* Move it into a folder for --merge-lora, or remove"):
        load(directory)


def test_files_next_to_a_whole_model_are_not_read(directory: Path) -> None:
    before = load(directory)
    tensors = {name: np.zeros_like(each) for name, each in load_file(directory / FILE).items()}
    save_file(tensors | {"lora_A": np.zeros(3, np.float32)}, directory / "adapter_model.safetensors")
    after = load(directory)
    np.testing.assert_array_equal(after.layers.qkv[...], before.layers.qkv[...])
    np.testing.assert_array_equal(after.embedding[...], before.embedding[...])
    (directory / FILE).rename(directory / "first.safetensors")  # no file is called the whole model
    with pytest.raises(ModelError, match=r"both adapter_model\.safetensors and first\.safetensors may hold"):
        load(directory)
    (directory / "adapter_model.safetensors").unlink()
    np.testing.assert_array_equal(load(directory).embedding[...], before.embedding[...])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["model.layers.1.self_attn.k_proj.weight", "model.norm.weight"])
def test_a_weight_that_is_no_number_is_named(directory: Path, dtype: str, value: float, name: str) -> None:
    def spoil(tensors: dict) -> None:
        tensors[name] = tensors[name].copy()
        tensors[name].flat[7] = value

    rewrite(directory, spoil)
    with pytest.raises(ModelError, match=rf"{name} holds NaN or infinity as {dtype}"):
        load(directory, dtype)


def test_a_tied_head_that_differs_from_the_embedding_is_refused(directory: Path) -> None:
    embedding = load_file(directory / FILE)["model.embed_tokens.weight"]
    rewrite(directory, lambda tensors: tensors.update({"lm_head.weight": embedding.copy()}))
    load(directory)
    rewrite(directory, lambda tensors: tensors.update({"lm_head.weight": embedding * 2}))
    with pytest.raises(ModelError, match=r"lm_head\.weight is not the embedding"):
        load(directory)


def test_query_heads_lie_beside_their_kv_head(directory: Path) -> None:
    config, decoder = read_model_config(directory), load(directory)
    stored = load_file(directory / FILE)
    q = stored["model.layers.1.self_attn.q_proj.weight"].astype(np.float32)
    group, head_dim = config.attention.group, config.attention.head_dim
    head = group + 1  # second query head of the second KV head
    qkv = decoder.layers.qkv[...][1].reshape(config.embed, config.attention.kv_heads, group + 2, head_dim)
    np.testing.assert_array_equal(qkv[:, 1, 1], q[head * head_dim : (head + 1) * head_dim].T)


def test_missing_extra_misshapen_and_unknown_tensors_are_named(directory: Path) -> None:
    name = "model.layers.1.mlp.up_proj.weight"
    kept = load_file(directory / FILE)[name]
    rewrite(directory, lambda t: t.pop(name))
    with pytest.raises(ModelError, match=rf"tensor {name} is missing"):
        load(directory)
    rewrite(directory, lambda t: t.update({name: kept[:-1]}))
    with pytest.raises(ModelError, match=rf"tensor {name} has shape .*; config.json asks for"):
        load(directory)
    rewrite(directory, lambda t: t.update({name: kept.view(np.int16)}))
    with pytest.raises(ModelError, match=rf"tensor {name} is stored as I16"):
        load(directory)
    rewrite(directory, lambda t: t.update({name: kept, "model.vision.weight": kept}))
    with pytest.raises(ModelError, match=r"tensor model\.vision\.weight belongs to no part"):
        load(directory)


def test_a_tied_head_and_derived_buffers_may_be_stored_as_well(directory: Path) -> None:
    def add(tensors: dict) -> None:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.zeros(4, np.float32)

    rewrite(directory, add)
    load(directory)


def test_a_classifier_reads_its_own_head_and_ignores_lm_head(tmp_path: Path) -> None:
    path = tiny_checkpoint(tmp_path / "model", family="llama", head_labels=("a", "b", "c"))
    head = load_file(path / FILE)["score.weight"].astype(np.float32)
    rewrite(path, lambda tensors: tensors.update({"lm_head.weight": tensors["model.embed_tokens.weight"] * 2}))
    np.testing.assert_array_equal(from_bits(load(path).head_weight), head)
    rewrite(path, lambda tensors: tensors.update({"score.bias": np.zeros(3, np.float32)}))
    with pytest.raises(ModelError, match=r"tensor score\.bias belongs to no part"):
        load(path)
    rewrite(path, lambda tensors: (tensors.pop("score.bias"), tensors.pop("score.weight")))
    with pytest.raises(ModelError, match=r"tensor score\.weight is missing"):
        load(path)


def test_truncated_file(directory: Path) -> None:
    file = directory / FILE
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(ModelError, match="truncated or not a safetensors file"):
        load(directory)


def test_no_weights_a_missing_shard_and_a_broken_index(tmp_path: Path, directory: Path) -> None:
    (directory / FILE).unlink()
    with pytest.raises(ModelError, match=r"no \.safetensors files"):
        load(directory)
    sharded = tiny_checkpoint(tmp_path / "sharded", shards=2)
    index = sharded / "model.safetensors.index.json"
    lost = min(json.loads(index.read_text())["weight_map"].values())
    (sharded / lost).unlink()
    with pytest.raises(ModelError, match=f"{lost}: missing, though"):
        load(sharded)
    index.write_text("[]")
    with pytest.raises(ModelError, match=r"index\.json: holds a JSON list, not an object"):
        load(sharded)
    index.write_text("{}")
    with pytest.raises(ModelError, match="not a safetensors index"):
        load(sharded)


def test_parts_without_an_index_must_be_one_complete_set(tmp_path: Path) -> None:
    whole, parts = (tiny_checkpoint(tmp_path / str(shards), shards=shards, seed=3) for shards in (1, 3))
    (parts / "model.safetensors.index.json").unlink()
    np.testing.assert_array_equal(load(parts).layers.qkv[...], load(whole).layers.qkv[...])
    other = parts / "other-00001-of-00001.safetensors"
    other.write_bytes((whole / FILE).read_bytes())
    with pytest.raises(ModelError, match=r"both model-00001-of-00003\.safetensors and other-00001-of-00001\."):
        load(parts)
    other.unlink()
    (parts / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(ModelError, match=r"model-00002-of-00003\.safetensors: missing, though model-00001-of-00003"):
        load(parts)


def test_a_tensor_that_two_files_hold_is_refused_with_both(tmp_path: Path) -> None:
    directory = tiny_checkpoint(tmp_path / "model", shards=2)
    index = json.loads((directory / "model.safetensors.index.json").read_text())
    save_file({"model.norm.weight": np.ones(64, np.float32)}, directory / "z.safetensors")
    index["weight_map"]["z"] = "z.safetensors"
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match=r"both model-0000\d-of-00002\.safetensors and z\.safetensors hold tensor"):
        load(directory)


def test_two_names_of_one_parameter_are_refused_with_both(directory: Path) -> None:
    rewrite(directory, lambda tensors: tensors.update({"norm.weight": tensors["model.norm.weight"] * 2}))
    with pytest.raises(ModelError, match=r"tensors model\.norm\.weight and norm\.weight are the same parameter"):
        load(directory)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "../model.safetensors", "/model.safetensors", 7, ""])
def test_named_weights_must_be_safetensors_in_the_directory(directory: Path, name: object) -> None:
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"transformers_weights": name}))
    with pytest.raises(ModelError, match=r"config\.json: transformers_weights "):
        load(directory)


def test_an_index_cannot_reach_outside_its_directory(tmp_path: Path) -> None:
    sharded = tiny_checkpoint(tmp_path / "sharded", shards=2)
    index = sharded / "model.safetensors.index.json"
    for place in ("../../etc", "/etc", str(tmp_path), "x/../.."):
        named = json.loads(index.read_text())["weight_map"].items()
        index.write_text(json.dumps({"weight_map": {name: f"{place}/{Path(each).name}" for name, each in named}}))
        with pytest.raises(ModelError, match=r"weight_map names .*, which is not inside the model's dir"):
            load(sharded)


def with_uneven_norms(tensors: dict[str, np.ndarray]) -> None:
    """Let the weights of norms matter."""
    random = np.random.default_rng(0)
    for name in tensors:
        if "layernorm" in name:
            tensors[name] = random.uniform(0.25, 4, tensors[name].shape).astype(tensors[name].dtype)


def with_another_norm(tensors: dict[str, np.ndarray]) -> None:
    """Let one layer's norm be a hundredth larger: a step of bfloat16, which no order of summing makes."""
    name = next(name for name in tensors if "1.input_layernorm" in name)
    tensors[name] = (tensors[name].astype(np.float32) * 1.01).astype(tensors[name].dtype)


def test_norms_are_multiplied_into_the_products_behind_them(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rewrite(directory, with_uneven_norms)
    plain = load(directory).layers
    monkeypatch.setattr(XlaCpuBackend, "folds_norms", True)
    folded = load(directory).layers
    norm, mlp_norm = plain.attention_norm[...], plain.mlp_norm[...]
    np.testing.assert_array_equal(folded.qkv[...], plain.qkv[...] * norm[:, :, None])
    np.testing.assert_array_equal(folded.gate_up[...], plain.gate_up[...] * mlp_norm[:, None, :, None])
    assert not hasattr(folded, "attention_norm")
    assert not hasattr(folded, "mlp_norm")


@pytest.mark.parametrize(
    "family", ["qwen3", *(pytest.param(each, marks=pytest.mark.full) for each in ("qwen2", "llama"))]
)
def test_folded_norms_change_no_score(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = tiny_checkpoint(tmp_path / "model", family=family, num_hidden_layers=3)
    rewrite(directory, with_uneven_norms)

    def scores() -> np.ndarray:
        with Engine.from_pretrained(directory, progress=False, **SMALL_ENGINE) as engine:
            return np.asarray(engine.score([5, 6, 7] * 30, [[8, 9], [10] * 20], [7, 30, 55], apply_softmax=True).scores)

    plain = scores()
    monkeypatch.setattr(XlaCpuBackend, "folds_norms", True)
    np.testing.assert_allclose(scores(), plain, rtol=0, atol=TINY_PROBABILITIES)
    rewrite(directory, with_another_norm)
    assert np.abs(scores() - plain).max() > 4 * TINY_PROBABILITIES
