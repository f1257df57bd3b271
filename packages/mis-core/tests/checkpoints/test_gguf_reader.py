"""The header of a GGUF file is read as the `gguf` package reads it."""

from pathlib import Path

import gguf
import numpy as np

from mis_core.checkpoints.files import Files
from mis_core.checkpoints.gguf_reader import open_gguf

_ARRAYS = {
    "texts": ["", "a", "名前\n", "x" * 300],
    "numbers": [1.5, -2.0, 3.25],
    "whole": [-1, 0, 1 << 30],
    "switches": [True, False],
    "bytes": b"\x00\xff",
    "nested": [[1, 2], [3]],
    "one": ["alone"],
}


def test_values_and_tensors_are_those_of_the_package(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(str(file), "llama")
    for name, values in _ARRAYS.items():
        writer.add_array(f"array.{name}", values)
    writer.add_float64("number", 0.1)
    writer.add_tensor("one.weight", np.arange(6, dtype=np.float32).reshape(2, 3))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    ours, theirs = open_gguf(file, Files()), gguf.GGUFReader(file)
    assert [*ours.fields] == [*theirs.fields]
    assert {f"array.{name}" for name in _ARRAYS} < ours.fields.keys()
    for name, field in theirs.fields.items():
        assert (ours.fields[name].contents(), ours.fields[name].types) == (field.contents(), field.types)
    assert [(each.name, each.data_offset) for each in ours.tensors] == [
        (each.name, each.data_offset) for each in theirs.tensors
    ]
    assert ours.tensors[0].data.tolist() == theirs.tensors[0].data.tolist()
