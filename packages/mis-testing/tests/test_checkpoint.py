"""Checkpoints: loadable by transformers as they stand, deterministic, and with logits that mean something."""

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from mis_testing import SHAPES, CheckpointShape, tiny_checkpoint
from mis_testing.bits import assert_bits_equal
from mis_testing.weights import random_tensor, tensor_specs

VARIANTS = {
    "qwen3 grouped tied": {"family": "qwen3"},
    "qwen3 full heads untied": {"family": "qwen3", "num_key_value_heads": 4, "tie_word_embeddings": False},
    "qwen2": {"family": "qwen2"},
    "qwen2 odd head": {"family": "qwen2", "head_dim": 24, "tie_word_embeddings": False},
    "llama": {"family": "llama"},
    "llama wide head new spelling": {"family": "llama", "head_dim": 64, "rope_spelling": "new"},
    "linear": {"family": "qwen2", "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
    "yarn": {
        "family": "qwen3",
        "rope_scaling": {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 512},
        "rope_spelling": "new",
    },
    "float16 in three files": {"family": "qwen3", "dtype": "float16", "shards": 3},
    "float32": {"family": "llama", "dtype": "float32"},
    "biases of attention": {"family": "qwen3", "attention_bias": True},
    "biases": {"family": "llama", "attention_bias": True, "mlp_bias": True},
    "mistral": {"family": "mistral", "sliding_window": 40},
    "ministral": {"family": "ministral"},
    "smollm3": {"family": "smollm3"},
    "gemma2": {"family": "gemma2"},
    "gemma3": {"family": "gemma3"},
    "qwen3_5": {"family": "qwen3_5"},
    "qwen3_5 listed layers, untied, new spelling": {
        "family": "qwen3_5",
        "num_hidden_layers": 6,
        "layer_types": ("linear_attention", "linear_attention", "full_attention") * 2,
        "tie_word_embeddings": False,
        "rope_spelling": "new",
    },
    "gemma3 new spelling, untied, a cap": {
        "family": "gemma3",
        "rope_spelling": "new",
        "tie_word_embeddings": False,
        "final_logit_softcapping": 20.0,
    },
    "smollm3 listed layers, biases": {
        "family": "smollm3",
        "no_rope_layers": (0, 1),
        "attention_bias": True,
        "mlp_bias": True,
    },
}

# Parameter counts as the model cards give them (tied heads counted once).
PUBLISHED_PARAMETERS = {
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "smollm2-135m": 134_515_008,
    "smollm3-3b": 3_075_098_624,
    "ministral-8b": 8_019_808_256,  # of its card
    "mistral-7b": 7_248_023_552,
    "gemma-2-2b": 2_614_341_888,
    "gemma-2-9b": 9_241_705_984,
    "gemma-3-270m": 268_098_176,
    "gemma-3-1b": 999_885_952,
    "gemma-3-4b": 3_880_263_168,  # without the image tower, whose models have 4,300,079,472
    "gemma-3-12b": 11_766_034_176,  # likewise; 12,187,325,040
    # Of the text alone, as transformers counts them.
    "qwen3.5-0.8b": 752_393_024,
    "qwen3.5-2b": 1_881_825_088,
    "qwen3.5-4b": 4_205_751_296,
    "qwen3.5-9b": 8_953_803_264,
    "qwen3.5-27b": 26_895_998_464,
}


def digests(path: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(path.iterdir())}


def stored_tensors(path: Path) -> dict[str, np.ndarray]:
    tensors: dict[str, np.ndarray] = {}
    for file in sorted(path.glob("*.safetensors")):
        with safe_open(file, framework="np") as reader:
            tensors |= {name: reader.get_tensor(name) for name in reader.keys()}  # noqa: SIM118 (not a dict)
    return tensors


@pytest.mark.parametrize("variant", VARIANTS)
def test_transformers_loads_every_tensor_and_logits_spread(
    variant: str, checkpoint_factory: Callable[..., Path], oracle_factory: Callable
) -> None:
    oracle = oracle_factory(checkpoint_factory(**VARIANTS[variant]))  # raises on missing or unexpected tensors
    random = np.random.default_rng(0)
    logprobs = np.stack([oracle.next_token_logprobs(random.integers(0, 900, 20)) for _ in range(8)])
    assert 1.7 < logprobs.std(axis=1).mean() < 2.5


def test_attention_is_far_from_uniform(checkpoint_factory: Callable[..., Path]) -> None:
    torch = pytest.importorskip("torch")
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(checkpoint_factory("llama"), attn_implementation="eager")
    with torch.inference_mode():
        tokens = torch.tensor(np.random.default_rng(0).integers(0, 900, (1, 64)))
        weights = torch.stack(model(tokens, output_attentions=True).attentions)[..., -1, :].float()
    entropy = -(weights * weights.clamp_min(1e-30).log()).sum(-1).mean()
    assert entropy < 0.85 * np.log(64)


def test_equal_arguments_give_equal_files(tmp_path: Path) -> None:
    first, again = tiny_checkpoint(tmp_path / "a", "llama"), tiny_checkpoint(tmp_path / "b", "llama")
    other = tiny_checkpoint(tmp_path / "c", "llama", seed=1)
    assert digests(first) == digests(again)
    assert digests(first)["model.safetensors"] != digests(other)["model.safetensors"]


def test_shards_hold_the_same_tensors_as_one_file(tmp_path: Path) -> None:
    single, several = tiny_checkpoint(tmp_path / "one"), tiny_checkpoint(tmp_path / "three", shards=3)
    index = json.loads((several / "model.safetensors.index.json").read_text())
    expected, actual = stored_tensors(single), stored_tensors(several)
    assert set(index["weight_map"].values()) == {f"model-{n:05d}-of-00003.safetensors" for n in (1, 2, 3)}
    assert set(index["weight_map"]) == set(actual) == set(expected)
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in actual.values())
    for name, tensor in expected.items():
        assert_bits_equal(actual[name], tensor)


def test_as_many_shards_as_tensors_leave_none_empty(tmp_path: Path) -> None:
    count = len(list(tensor_specs(CheckpointShape.of("qwen3"), 960)))
    path = tiny_checkpoint(tmp_path, shards=count)
    assert len(list(path.glob("model-*.safetensors"))) == count


@pytest.mark.parametrize("family", ["qwen3", "llama"])
def test_both_spellings_of_rope_are_the_same_model(
    family: str, checkpoint_factory: Callable[..., Path], oracle_factory: Callable
) -> None:
    old, new = (checkpoint_factory(family, rope_spelling=spelling) for spelling in ("old", "new"))
    assert "rope_theta" in json.loads((old / "config.json").read_text())
    assert "rope_parameters" in json.loads((new / "config.json").read_text())
    tokens = list(range(5, 105))
    assert_bits_equal(oracle_factory(old).next_token_logprobs(tokens), oracle_factory(new).next_token_logprobs(tokens))


def test_the_tiny_llamas_rope_scaling_matters_at_100_tokens(
    checkpoint_factory: Callable[..., Path], oracle_factory: Callable
) -> None:
    scaled, plain = checkpoint_factory("llama"), checkpoint_factory("llama", rope_scaling=None)
    tokens = list(range(5, 105))
    difference = oracle_factory(scaled).next_token_logprobs(tokens) - oracle_factory(plain).next_token_logprobs(tokens)
    assert np.abs(difference).mean() > 0.05


def test_the_tiny_smollm3s_layer_without_rope_matters(
    checkpoint_factory: Callable[..., Path], oracle_factory: Callable
) -> None:
    without, everywhere = checkpoint_factory("smollm3"), checkpoint_factory("smollm3", no_rope_layers=(1, 1))
    tokens = list(range(5, 105))
    difference = oracle_factory(without).next_token_logprobs(tokens) - oracle_factory(everywhere).next_token_logprobs(
        tokens
    )
    assert np.abs(difference).mean() > 0.05


@pytest.mark.parametrize("name", SHAPES)
def test_published_sizes_have_the_published_number_of_parameters(name: str) -> None:
    shape = CheckpointShape.of(**SHAPES[name])
    assert shape.vocab_size is not None
    assert sum(spec.elements for spec in tensor_specs(shape, shape.vocab_size)) == PUBLISHED_PARAMETERS[name]


def test_a_tensor_drawn_in_blocks_has_the_wanted_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mis_testing.weights._BLOCK_ELEMENTS", 1000)
    spec = next(spec for spec in tensor_specs(CheckpointShape.of("qwen3"), 960) if "embed" in spec.name)
    values = random_tensor(spec, "float32", seed=3)
    assert values.shape == spec.shape
    assert np.isclose(values.std(), spec.std, rtol=0.02)
    assert len(np.unique(values)) > 0.99 * values.size  # blocks continue the stream instead of repeating it


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        (
            {"family": "gpt2"},
            "family must be one of qwen3, .*, gemma2, gemma3, qwen3_5, not 'gpt2'",
        ),
        ({"hiden_size": 64}, "did you mean 'hidden_size'"),
        ({"dtype": "int8"}, "dtype must be one of"),
        ({"rope_spelling": "newer"}, "rope_spelling must be one of old, new"),
        ({"num_key_value_heads": 3}, "must be a multiple of num_key_value_heads"),
        ({"head_dim": 31}, "head_dim must be even"),
        ({"family": "llama", "hidden_size": 66}, "hidden_size must be a multiple"),
        ({"vocab_size": 100}, "vocab_size must be at least the tokenizer's"),
        ({"mlp_bias": True}, "mlp_bias is for llama, smollm3, not for qwen3"),
        (
            {"family": "qwen2", "attention_bias": True},
            "attention_bias is for qwen3, llama, smollm3, gemma2, gemma3, not for qwen2",
        ),
        ({"shards": 0}, "shards must be at least 1"),
        ({"shards": 1000}, "must not exceed the number of tensors"),
    ],
)
def test_impossible_sizes_are_named(sizes: dict, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        tiny_checkpoint(tmp_path, **sizes)


def test_writing_needs_neither_pytorch_nor_jax(tmp_path: Path) -> None:
    code = (
        "import sys; from mis_testing import tiny_checkpoint; tiny_checkpoint(sys.argv[1]);"
        "print(sorted({'torch', 'jax', 'transformers', 'mis_core'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
