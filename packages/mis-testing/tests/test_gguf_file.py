"""GGUF files of checkpoints: types as they are stored, and without a vocabulary."""

from pathlib import Path

import gguf
import numpy as np
import pytest

from mis_testing import tiny_checkpoint
from mis_testing.gguf_file import write_gguf


@pytest.mark.parametrize(("dtype", "kind"), [("bfloat16", "BF16"), ("float16", "F16"), ("float32", "F32")])
def test_matrices_keep_their_type_where_none_is_given(tmp_path: Path, dtype: str, kind: str) -> None:
    directory = tiny_checkpoint(tmp_path / "model", num_hidden_layers=1, dtype=dtype)
    tensors = gguf.GGUFReader(write_gguf(tmp_path / "model.gguf", directory, None, has_vocabulary=False)).tensors
    assert {each.tensor_type.name for each in tensors if len(each.shape) > 1} == {kind}
    assert {each.tensor_type.name for each in tensors if len(each.shape) == 1} == {"F32"}


def test_a_vocabulary_may_be_left_out(tmp_path: Path) -> None:
    directory = tiny_checkpoint(tmp_path / "model", num_hidden_layers=1)
    (directory / "tokenizer.json").unlink()
    fields = gguf.GGUFReader(write_gguf(tmp_path / "model.gguf", directory, has_vocabulary=False)).fields
    assert np.array(fields["tokenizer.ggml.model"].parts[-1]).tobytes() == b"no_vocab"
    assert "tokenizer.ggml.tokens" not in fields
