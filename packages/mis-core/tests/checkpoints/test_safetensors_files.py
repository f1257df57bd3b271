"""Elements of safetensors files are those that `safetensors` reads, and no pages of a file stay in memory."""

import contextlib
import os
import re
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from mis_core.checkpoints.safetensors_files import open_safetensors
from mis_core.errors import ModelError

MIB = 1 << 20


def mapped_bytes() -> int:
    """Return how much of mapped files this process has in memory."""
    match = re.search(r"RssFile:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert match is not None
    return int(match[1]) << 10


def test_elements_of_every_type_are_those_of_the_library(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    types = (np.float64, np.float32, np.float16, ml_dtypes.bfloat16, np.int64)
    drawn = np.random.default_rng(0).standard_normal((3, 5))
    save_file({f"{np.dtype(each)}": drawn.astype(each) for each in types} | {"empty": np.zeros((0, 4))}, path)
    expected = load_file(path)
    with contextlib.ExitStack() as stack:
        file, names = open_safetensors(stack, path)
        assert sorted(names) == sorted(expected)
        for name, tensor in expected.items():
            found = file.get_tensor(name)
            assert found.dtype == tensor.dtype
            np.testing.assert_array_equal(found, tensor)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="counts pages as Linux does")
def test_what_was_read_keeps_no_pages_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"weight": np.ones((16, MIB), np.float32)}, path)
    with contextlib.ExitStack() as stack:
        file, _ = open_safetensors(stack, path)
        before = mapped_bytes()
        assert file.get_tensor("weight").nbytes == 64 * MIB
        assert mapped_bytes() - before < 8 * MIB


def test_a_file_that_became_shorter_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"weight": np.ones(MIB, np.float32)}, path)
    with contextlib.ExitStack() as stack:
        file, _ = open_safetensors(stack, path)
        os.truncate(path, MIB)
        with pytest.raises(ModelError, match=f"{re.escape(str(path))}: truncated while tensor weight was read"):
            file.get_tensor("weight")
