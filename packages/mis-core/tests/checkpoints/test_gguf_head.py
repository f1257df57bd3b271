"""Rerankers in GGUF files: a head is read as it is stored, and files of other kinds are refused by name."""

import re
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest

from mis_core.checkpoints import open_checkpoint
from mis_core.errors import ModelError
from mis_core.models.config import read_model_config
from mis_core.models.weights import load_decoder
from mis_testing import tiny_checkpoint
from mis_testing.gguf_file import write_gguf

Write = Callable[[gguf.GGUFWriter], object]


def reranker(file: Path, write: Write, shape: tuple[int, ...] = (2, 512), kind: str = "F32") -> Path:
    """Write a file that has the settings of a small reranker, its head, and what else is asked for."""
    writer = gguf.GGUFWriter(str(file), "qwen3")
    for name, value in {"block_count": 1, "embedding_length": 512, "feed_forward_length": 512}.items():
        writer.add_uint32(f"qwen3.{name}", value)
    writer.add_head_count(4)
    writer.add_tensor("token_embd.weight", np.zeros((8, 512), np.float32))
    rows = np.random.default_rng(7).standard_normal(shape, np.float32)
    quantization = gguf.GGMLQuantizationType[kind]
    writer.add_tensor("cls.output.weight", gguf.quantize(rows, quantization), raw_dtype=quantization)
    write(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def rank(writer: gguf.GGUFWriter) -> None:
    writer.add_pooling_type(gguf.PoolingType.RANK)


def labelled(*labels: str) -> Write:
    return lambda writer: (rank(writer), writer.add_classifier_output_labels(labels))


def test_a_head_and_its_labels_are_read(tmp_path: Path) -> None:
    file = reranker(tmp_path / "model.gguf", labelled("yes", "no"), kind="Q8_0")
    config = read_model_config(file)
    assert (config.architecture, config.head_labels) == ("Qwen3ForSequenceClassification", ("yes", "no"))
    assert (config.head_activation, config.tied) == ("softmax", False)
    stored = gguf.GGUFReader(file).tensors[1]
    with open_checkpoint(file).tensors() as tensors:
        assert "cls.output.weight" not in tensors
        assert tensors["score.weight"].shape == (2, 512)
        np.testing.assert_array_equal(
            tensors["score.weight"].read(), gguf.dequantize(stored.data, stored.tensor_type).reshape(2, 512)
        )


@pytest.mark.parametrize("shape", [(1, 512), (512,)])
def test_one_row_may_be_stored_as_a_list(tmp_path: Path, shape: tuple[int, ...]) -> None:
    file = reranker(tmp_path / "model.gguf", rank, shape)
    config = read_model_config(file)
    assert (config.head_labels, config.head_activation) == (("LABEL_0",), "sigmoid")
    with open_checkpoint(file).tensors() as tensors:
        assert tensors["score.weight"].shape == tensors["score.weight"].read().shape == (1, 512)


_REFUSED: dict[str, tuple[Write, str]] = {
    "mean": (lambda writer: writer.add_pooling_type(gguf.PoolingType.MEAN), "pooling_type = 1 (mean) marks an embed"),
    "last": (lambda writer: writer.add_pooling_type(gguf.PoolingType.LAST), "pooling_type = 3 (last) marks an embed"),
    "new": (lambda writer: writer.add_uint32("qwen3.pooling_type", 5), "pooling_type = 5 marks an embedding"),
    "text": (lambda writer: writer.add_string("qwen3.pooling_type", "rank"), "pooling_type = rank marks an embedding"),
    "fewer labels": (labelled("yes"), "classifier.output_labels must name the 2 rows of cls.output.weight."),
    "no labels": (lambda writer: (rank(writer), writer.add_string("qwen3.classifier.output_labels", "yes")),
                  "classifier.output_labels must name the 2 rows"),
    "labels alone": (lambda writer: writer.add_classifier_output_labels(["a", "b"]), "qwen3.classifier.output_labels"),
}  # fmt: skip


@pytest.mark.parametrize("fault", _REFUSED)
def test_other_kinds_are_refused_by_name(tmp_path: Path, fault: str) -> None:
    write, said = _REFUSED[fault]
    file = reranker(tmp_path / "model.gguf", write)
    with pytest.raises(ModelError, match=re.escape(said)) as raised:
        read_model_config(file)
    assert raised.value.message.startswith(f"{file}: ")


def test_a_reranker_without_a_head_is_refused(tmp_path: Path) -> None:
    directory = tiny_checkpoint(tmp_path / "model", num_hidden_layers=1)
    file = write_gguf(tmp_path / "model.gguf", directory, fields={"qwen3.pooling_type": 4.0})
    with pytest.raises(ModelError, match=re.escape("pooling_type is rank, but tensor cls.output.weight is missing")):
        read_model_config(file)


@pytest.mark.parametrize("name", ["cls.output.bias", "cls.weight", "cls.norm.weight"])
def test_a_head_of_more_than_rows_is_refused_by_name(tmp_path: Path, name: str) -> None:
    directory = tiny_checkpoint(tmp_path / "model", num_hidden_layers=1, head_labels=("no", "yes"))
    file = write_gguf(tmp_path / "model.gguf", directory, more_tensors={name: np.zeros(2, np.float32)})
    with pytest.raises(ModelError, match=re.escape(f"tensor {name} belongs to no part of the model")):
        load_decoder(file, read_model_config(file), np.dtype(np.float32), progress=False)
