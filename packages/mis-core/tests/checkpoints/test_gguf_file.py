"""GGUF files: the same weights and settings as the directory they were made of, and broken ones refused by one line."""

import dataclasses
import functools
import os
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st

from mis_core import Engine
from mis_core.checkpoints import open_checkpoint
from mis_core.checkpoints.files import Files
from mis_core.checkpoints.gguf_file import GgufCheckpoint
from mis_core.errors import ModelError
from mis_core.models.config import read_model_config
from mis_core.models.rope import frequencies
from mis_core.models.weights import load_decoder
from mis_testing import tiny_checkpoint
from mis_testing.gguf_file import write_gguf
from mis_testing.options import SMALL_ENGINE

pytestmark = pytest.mark.usefixtures("plain_weights")
_KINDS = [kind for kind in gguf.GGMLQuantizationType if kind.name in open_checkpoint(__file__).stored_types()]
_ROPE = {
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "linear": {"rope_type": "linear", "factor": 4.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
}
_MODELS: dict[str, dict[str, Any]] = {
    "llama": {"family": "llama"},
    "llama-tied": {"family": "llama", "tie_word_embeddings": True},
    "llama-biases": {"family": "llama", "attention_bias": True, "mlp_bias": True},
    "llama3": {"family": "llama", "rope_scaling": _ROPE["llama3"]},
    "qwen2": {"family": "qwen2"},
    "qwen3": {"family": "qwen3"},
    "qwen3-yarn": {"family": "qwen3", "rope_scaling": _ROPE["yarn"]},
    "qwen2-linear": {"family": "qwen2", "rope_scaling": _ROPE["linear"]},
    # The files do not say by what attention's scores are divided: it is the head's width.
    "gemma2": {"family": "gemma2", "query_pre_attn_scalar": 32},
    "gemma3": {"family": "gemma3", "query_pre_attn_scalar": 32},
    "gemma3-listed": {
        "family": "gemma3",
        "query_pre_attn_scalar": 32,
        "rope_spelling": "new",
        "layer_types": ["full_attention", "sliding_attention"],
    },
    "smollm3": {"family": "smollm3", "no_rope_layer_interval": 4, "num_hidden_layers": 5},
}


@functools.cache
def blocks(kind: gguf.GGMLQuantizationType) -> np.ndarray:
    """Return random blocks of a type, 4 rows of 512 elements each."""
    block, size = gguf.GGML_QUANT_SIZES[kind]
    return np.random.default_rng(7).integers(0, 256, (4, 512 // block * size), np.uint8)


def written(file: Path, write: Callable[[gguf.GGUFWriter], None], architecture: str = "qwen3") -> Path:
    """Write a file that has the settings of a small model, and what else is asked for."""
    writer = gguf.GGUFWriter(str(file), architecture)
    for name, value in {"block_count": 1, "embedding_length": 512, "feed_forward_length": 512}.items():
        writer.add_uint32(f"{architecture}.{name}", value)
    writer.add_head_count(4)
    write(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def test_the_types_of_today_are_read() -> None:
    known = {kind.name for kind in _KINDS}
    assert known >= {"F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"}
    assert known >= {"Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS", "IQ4_NL", "MXFP4"}


@pytest.mark.parametrize("kind", _KINDS, ids=lambda kind: kind.name)
def test_tensors_have_the_bits_that_gguf_makes_of_them(tmp_path: Path, kind: gguf.GGMLQuantizationType) -> None:
    stored = blocks(kind)
    file = written(
        tmp_path / "model.gguf",
        lambda writer: [
            writer.add_tensor(name, stored, raw_dtype=kind) for name in ("token_embd.weight", "output.weight")
        ],
    )
    with np.errstate(all="ignore"), open_checkpoint(file).tensors() as tensors:
        read, wanted = tensors["lm_head.weight"].read(), gguf.dequantize(stored, kind)
        assert tensors["lm_head.weight"].shape == read.shape == (4, 512)
    np.testing.assert_array_equal(read.view(np.uint32), wanted.view(np.uint32))


@pytest.mark.parametrize("model", _MODELS)
def test_a_file_is_the_model_it_was_made_of(tmp_path: Path, model: str) -> None:
    directory = tiny_checkpoint(tmp_path / "model", **{"num_hidden_layers": 2, **_MODELS[model]})
    file = write_gguf(tmp_path / "model.gguf", directory)
    of_file, of_directory = read_model_config(file), read_model_config(directory)
    for ours, theirs in zip(of_file.layers, of_directory.layers, strict=True):
        assert ours.heads == theirs.heads
        assert (ours.rope is None) == (theirs.rope is None)
        if ours.rope is not None and theirs.rope is not None:
            (inverse, factor), (expected, expected_factor) = frequencies(ours.rope), frequencies(theirs.rope)
            np.testing.assert_allclose(inverse, expected, rtol=1e-6)
            assert factor == pytest.approx(expected_factor)
    assert of_file.norm_epsilon == pytest.approx(of_directory.norm_epsilon)
    same = {"layers": of_file.layers, "norm_epsilon": of_file.norm_epsilon}
    assert dataclasses.replace(of_directory, **same) == of_file
    ours, theirs = (
        nnx.to_flat_state(nnx.state(load_decoder(path, of_directory, jnp.dtype("float32"), progress=False)))
        for path in (file, directory)
    )
    for (name, one), (_, other) in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(np.asarray(one[...]), np.asarray(other[...]), err_msg=str(name))


def test_a_factor_of_rope_without_a_type_is_linear(tmp_path: Path) -> None:
    scalings = []
    for factor in (4.0, 0.0):

        def write(writer: gguf.GGUFWriter, factor: float = factor) -> None:
            writer.add_tensor("token_embd.weight", np.zeros((8, 512), np.float32))
            writer.add_rope_scaling_factor(factor)

        settings = open_checkpoint(written(tmp_path / f"{factor}.gguf", write)).settings()
        scalings.append(settings["rope_scaling"])
    assert scalings == [{"rope_type": "linear", "factor": 4.0}, None]


@pytest.mark.parametrize("model", ["llama", "gemma3"])
def test_texts_are_scored_as_by_the_directory(tmp_path: Path, model: str) -> None:
    directory = tiny_checkpoint(tmp_path / "model", **_MODELS[model], num_hidden_layers=2)
    file = write_gguf(tmp_path / "model.gguf", directory)
    scores = []
    for path in (file, directory):
        with Engine.from_pretrained(path, progress=False, **SMALL_ENGINE) as engine:
            scores.append(engine.score("Is it an animal?", [" a cat", " 1984 stones"], [5, 6]).scores)
            assert engine.tokenizer.chat_template is not None
    np.testing.assert_allclose(*scores, rtol=1e-5)


def test_a_quantised_file_runs(tmp_path: Path) -> None:
    directory = tiny_checkpoint(tmp_path / "model", "qwen3", num_hidden_layers=1)
    exact, quantised = (
        load_decoder(
            write_gguf(tmp_path / f"{kind}.gguf", directory, kind), read_model_config(directory), jnp.dtype("float32")
        )
        for kind in ("F32", "Q8_0")
    )
    difference = np.abs(np.asarray(exact.layers.down[...]) - np.asarray(quantised.layers.down[...])).max()
    assert 0 < difference < 0.02 * np.abs(np.asarray(exact.layers.down[...])).max()


# What is wrong with a file, and what its one line says.
_BROKEN: dict[str, tuple[str, Callable[[gguf.GGUFWriter], object], str]] = {
    "architecture": (
        "gemma4",
        lambda writer: None,
        "GGUF files of architecture 'gemma4' are not supported; known: llama, ",
    ),
    "experts": ("llama", lambda writer: writer.add_expert_count(8), "'llama.expert_count = 8' is not understood"),
    "window": ("llama", lambda writer: writer.add_sliding_window(64), "attention.sliding_window = 64' is not underst"),
    "unknown": ("qwen3", lambda writer: writer.add_float32("qwen3.new", 2), "'qwen3.new = 2.0' is not understood"),
    "partial": (
        "qwen3",
        lambda writer: writer.add_rope_dimension_count(64),
        "rope.dimension_count = 64' is not understood",
    ),
    "split": ("qwen3", lambda writer: writer.add_uint16("split.count", 2), "split.no is missing or not a whole number"),
    "scaling": (
        "llama",
        lambda writer: writer.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE),
        'RoPE type "longrope" is not supported',
    ),
    "no layers": ("llama", lambda writer: writer.add_uint32("llama.block_count", 0), "num_hidden_layers must be"),
}


@pytest.mark.parametrize("fault", _BROKEN)
def test_what_is_not_understood_is_refused_by_name(tmp_path: Path, fault: str) -> None:
    architecture, add, message = _BROKEN[fault]

    def write(writer: gguf.GGUFWriter) -> None:
        writer.add_tensor("token_embd.weight", np.zeros((8, 512), np.float32))
        if fault == "no layers":
            writer.kv_data[0].pop("llama.block_count")
        add(writer)

    file = written(tmp_path / "model.gguf", write, architecture)
    with pytest.raises(ModelError, match=re.escape(message)) as raised:
        read_model_config(file)
    assert raised.value.message.startswith(f"{file}: ")
    assert raised.value.message.count("\n") == 0


def test_tensors_that_do_not_fit_are_refused_by_name(tmp_path: Path) -> None:
    def write(writer: gguf.GGUFWriter, name: str = "blk.0.ffn_gate_inp.weight") -> None:
        writer.add_context_length(64)
        writer.add_tensor("token_embd.weight", np.zeros((8, 512), np.float32))
        writer.add_tensor(name, np.zeros((8, 512), np.float32))

    file = written(tmp_path / "model.gguf", write)
    with pytest.raises(ModelError, match=r"tensor model\.norm\.weight is missing"):
        load_decoder(file, read_model_config(file), jnp.dtype("float32"), progress=False)
    with open_checkpoint(file).tensors() as tensors:
        assert "blk.0.ffn_gate_inp.weight" in tensors


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    return write_gguf(folder / "model.gguf", tiny_checkpoint(folder / "model", num_hidden_layers=1))


def read_all(file: Path) -> None:
    """Read everything that serving a model reads."""
    checkpoint = open_checkpoint(file)
    checkpoint.tokenizer()
    load_decoder(file, read_model_config(file), jnp.dtype("float32"), progress=False)


@given(share=st.floats(0, 1, exclude_max=True))
@settings(max_examples=25)
def test_a_truncated_file_is_refused_by_one_line(
    whole: Path, tmp_path_factory: pytest.TempPathFactory, share: float
) -> None:
    content = whole.read_bytes()
    file = tmp_path_factory.mktemp("cut") / "model.gguf"
    file.write_bytes(content[: int(share * (len(content) - 32))])
    with pytest.raises(ModelError) as raised:
        read_all(file)
    assert raised.value.message.startswith(f"{file}: ")
    assert raised.value.message.count("\n") == 0


@given(data=st.data())
def test_a_damaged_header_is_refused_by_one_line_or_read(
    whole: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    content = bytearray(whole.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, 3000))] = data.draw(st.integers(0, 255))
    file = tmp_path_factory.mktemp("damaged") / "model.gguf"
    file.write_bytes(content)
    message = ""
    try:
        read_all(file)
    except ModelError as error:
        message = error.message
    assert message.count("\n") == 0


@pytest.mark.parametrize("content", [b"", b"GG", b"PK\x03\x04" + bytes(100), bytes(100), b"GGUF", b"GGUF" + bytes(99)])
def test_a_foreign_file_is_refused_by_one_line(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(content)
    with pytest.raises(ModelError, match=r"not a GGUF file|a truncated or broken GGUF file"):
        read_model_config(file)


def header(*fields: tuple[str, int, bytes], tensors: bytes = b"", tensor_count: int = 0) -> bytes:
    """Return the header of a file: its settings, each a name, a type and the bytes of the value, and its tensors."""
    names = ((name.encode(), kind, value) for name, kind, value in fields)
    settings = b"".join(
        struct.pack("<Q", len(name)) + name + struct.pack("<I", kind) + value for name, kind, value in names
    )
    return b"GGUF" + struct.pack("<IQQ", 3, tensor_count, len(fields)) + settings + tensors


_ARRAY, _BYTE, _UINT32 = 9, 0, 4
_NESTED = b"".join(struct.pack("<IQ", _ARRAY, 1) for _ in range(50_000))
_HOSTILE = {
    "nested arrays": (header(("a", _ARRAY, _NESTED)), "a truncated or broken GGUF file"),
    "an array of 2^60": (header(("a", _ARRAY, struct.pack("<IQ", _BYTE, 2**60))), "a truncated or broken GGUF file"),
    "a name of 2^63 bytes": (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**63), "a truncated or broken GGUF file"),
    "no alignment": (header(("general.alignment", _UINT32, bytes(4))), "a truncated or broken GGUF file"),
    "many values": (
        header(("a", _ARRAY, struct.pack("<IQ", _BYTE, 5000) + bytes(5000))),
        "more than 4,096 values in its header",
    ),
}


@pytest.mark.parametrize("fault", _HOSTILE)
def test_a_hostile_header_is_refused_before_it_takes_memory(tmp_path: Path, fault: str) -> None:
    content, said = _HOSTILE[fault]
    file = tmp_path / "model.gguf"
    file.write_bytes(content + bytes(64))
    with pytest.raises(ModelError, match=said) as raised:
        read_model_config(open_checkpoint(file, max_file_bytes=4096 * 32))
    assert raised.value.message.startswith(f"{file}: ")
    assert len(raised.value.message) < 400


def test_tensors_that_are_read_as_settings_are_bounded(tmp_path: Path) -> None:
    def factors(writer: gguf.GGUFWriter, size: int = 1 << 17) -> None:
        writer.add_tensor("token_embd.weight", np.zeros((8, 512), np.float32))
        writer.add_tensor("rope_freqs.weight", np.zeros(size, np.float32))

    with pytest.raises(ModelError, match=r"rope_freqs\.weight is not a list of factors"):
        read_model_config(written(tmp_path / "factors.gguf", factors))
    vector = written(
        tmp_path / "vector.gguf", lambda writer: writer.add_tensor("token_embd.weight", np.zeros(512, np.float32))
    )
    with pytest.raises(ModelError, match=r"token_embd\.weight is missing or not a matrix"):
        read_model_config(vector)


def test_a_named_pipe_is_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "model.gguf"
    os.mkfifo(pipe)
    with pytest.raises(ModelError, match="is a named pipe, not a file"):
        GgufCheckpoint(pipe, Files()).settings()
