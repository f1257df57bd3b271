"""GGUF files in several parts: the same model as the single file, and parts that do not belong together are refused."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import jax.numpy as jnp
import numpy as np
import pytest

from mis_core import Engine
from mis_core.calibration.loading import weights_digest
from mis_core.checkpoints import open_checkpoint
from mis_core.checkpoints.files import Files
from mis_core.checkpoints.gguf_parts import model_stem, part_paths
from mis_core.checkpoints.gguf_reader import open_gguf
from mis_core.config import EngineConfig
from mis_core.errors import ModelError
from mis_core.models.config import read_model_config
from mis_core.models.weights import load_decoder
from mis_testing import tiny_checkpoint
from mis_testing.gguf_file import write_gguf
from mis_testing.options import SMALL_ENGINE

NAME = "model-0000{}-of-00003.gguf"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("base") / "model", "llama", num_hidden_layers=2)


def elements(file: Path) -> dict[str, tuple[str, np.ndarray]]:
    """Return the type and the elements of every tensor."""
    with open_checkpoint(file).tensors() as tensors:
        return {name: (tensor.stored_type, tensor.read()) for name, tensor in tensors.items()}


GRID = [
    ("Q8_0", 7, False),
    pytest.param("F32", 1, False, marks=pytest.mark.full),
    pytest.param("BF16", 20, True, marks=pytest.mark.full),
    pytest.param("Q4_0", 3, True, marks=pytest.mark.full),
]


@pytest.mark.parametrize(("quantization", "most_tensors", "has_bare_first"), GRID)
def test_parts_are_the_single_file_bit_by_bit(
    tmp_path: Path, directory: Path, quantization: str, most_tensors: int, has_bare_first: bool
) -> None:
    single = write_gguf(tmp_path / "single.gguf", directory, quantization, "A model")
    parts = write_gguf(
        tmp_path / "model.gguf", directory, quantization, "A model",
        most_tensors=most_tensors, has_bare_first=has_bare_first,
    )  # fmt: skip
    one, several = open_checkpoint(single), open_checkpoint(parts)
    assert several.settings() == one.settings()
    assert several.signs().names == one.signs().names
    assert several.tokenizer().backend.to_str() == one.tokenizer().backend.to_str()
    assert [path.name for path in several.weight_paths()] == sorted(path.name for path in tmp_path.glob("model-*"))
    assert len(several.weight_paths()) >= 2
    ours, theirs = elements(parts), elements(single)
    assert ours.keys() == theirs.keys()
    for name, (stored_type, expected) in theirs.items():
        assert ours[name][0] == stored_type
        np.testing.assert_array_equal(ours[name][1].view(np.uint32), expected.view(np.uint32), err_msg=name)
    load_decoder(parts, read_model_config(parts), jnp.dtype("float32"), progress=False)


@pytest.mark.full
def test_scores_are_those_of_the_single_file(tmp_path: Path, directory: Path) -> None:
    single = write_gguf(tmp_path / "single.gguf", directory)
    parts = write_gguf(tmp_path / "model.gguf", directory, most_tensors=9)
    scores = []
    for path in (single, parts):
        with Engine.from_pretrained(path, progress=False, **SMALL_ENGINE) as engine:
            scores.append(engine.score("Is it an animal?", [" a cat", " 1984 stones"], [5, 6]).scores)
            assert [part.name for part in engine.parts] == [model_stem(path)]
    np.testing.assert_array_equal(*scores)


def test_digests_tell_models_apart_by_a_byte_of_any_part(tmp_path: Path, directory: Path) -> None:
    first = write_gguf(tmp_path / "model.gguf", directory, most_tensors=9)
    config = EngineConfig(model=str(first), compilation_cache_dir=str(tmp_path / "cache"))

    def digests() -> tuple[Any, str]:
        return open_checkpoint(first).parts(with_head=False), weights_digest(config)

    before = digests()
    assert [part.name for part in before[0]] == ["model"]
    assert before == digests()
    last = part_paths(first)[-1]
    content = bytearray(last.read_bytes())
    content[-1] ^= 1
    last.write_bytes(content)
    assert all(one != other for one, other in zip(before, digests(), strict=True))


def test_names_of_parts() -> None:
    paths = part_paths(Path("a/b-00001-of-00002-00002-of-00003.gguf"))
    assert [path.name[-20:] for path in paths] == [f"-0000{part}-of-00003.gguf" for part in (1, 2, 3)]
    assert {path.parent for path in paths} == {Path("a")}
    assert model_stem(paths[0]) == "b-00001-of-00002"
    for other in ("model.gguf", "model-1-of-3.gguf", "model-00001-of-00000.gguf", "model-00001-of-00003.gguf.bak"):
        assert part_paths(Path(other)) == [Path(other)]
    assert model_stem(Path("model-1-of-3.gguf")) == "model-1-of-3"


def write_part(path: Path, no: int | None, tensors: list[str], count: int = 3, total: int = 4, **fields: str) -> None:
    """Write one part of a model, whose tensors have four elements each."""
    writer = gguf.GGUFWriter(str(path), "qwen3")
    if no is None or no > 0:
        del writer.kv_data[0]["general.architecture"]
    if no is not None:
        writer.add_uint16("split.no", no)
    writer.add_uint16("split.count", count)
    writer.add_int32("split.tensors.count", total)
    for name, value in fields.items():
        writer.add_string(f"general.{name}", value)
    for name in tensors:
        writer.add_tensor(name, np.zeros((1, 4), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def whole(folder: Path) -> list[Path]:
    """Write three parts that belong together, and return their paths."""
    paths = [folder / NAME.format(part) for part in (1, 2, 3)]
    for no, tensors in enumerate((["token_embd.weight", "a.weight"], ["b.weight"], ["c.weight"])):
        write_part(paths[no], no, tensors)
    return paths


Paths = list[Path]
# What is done to three parts, which file the sentence names, and what it says.
_FAULTS: dict[str, tuple[Callable[[Paths], object], int, str]] = {
    "missing": (lambda paths: paths[2].unlink(), 2, f"missing, though {NAME.format(1)} is there."),
    "a folder": (lambda paths: (paths[2].unlink(), paths[2].mkdir()), 2, "is a folder, not a file."),
    "truncated": (lambda paths: paths[1].write_bytes(paths[1].read_bytes()[:60]), 1, "a truncated or broken GGUF file"),
    "no part": (lambda paths: paths[1].write_text("[]"), 1, "not a GGUF file"),
    "another": (lambda paths: paths[1].write_bytes(paths[2].read_bytes()), 1, "split.no = 2, but by its name it is 1."),
    "unnumbered": (lambda paths: write_part(paths[1], None, ["b.weight"]), 1, "split.no is missing or not a whole"),
    "twice": (lambda paths: write_part(paths[1], 1, ["a.weight"]), 0,
              f"both {NAME.format(1)} and {NAME.format(2)} hold tensor a.weight."),
    "fewer": (lambda paths: write_part(paths[1], 1, []), 0, "split.tensors.count = 4, but its 3 parts have 3."),
    "more": (lambda paths: write_part(paths[1], 1, ["b.weight", "d.weight"]), 0, "but its 3 parts have 5."),
    "other count": (lambda paths: write_part(paths[1], 1, ["b.weight"], 2), 1, "split.count differs from that of"),
    "other total": (lambda paths: write_part(paths[1], 1, ["b.weight"], 3, 5), 1, "split.tensors.count differs from"),
    "other model": (lambda paths: write_part(paths[1], 1, ["b.weight"], architecture="llama"), 1,
                    f"general.architecture differs from that of {NAME.format(1)}; it is part of another model."),
    "other name": (lambda paths: write_part(paths[1], 1, ["b.weight"], name="Other"), 1, "general.name differs from"),
}  # fmt: skip


@pytest.mark.parametrize("fault", _FAULTS)
def test_parts_that_do_not_belong_together_are_refused_by_name(tmp_path: Path, fault: str) -> None:
    paths = whole(tmp_path)
    with open_checkpoint(paths[0]).tensors() as tensors:  # as they are, they are read
        assert len(tensors) == 4
    spoil, named, said = _FAULTS[fault]
    spoil(paths)
    with pytest.raises(ModelError, match=re.escape(said)) as raised, open_checkpoint(paths[0]).tensors():
        pass
    assert raised.value.message.startswith(f"{paths[named]}: ")


def test_the_first_part_is_the_one_to_name(tmp_path: Path) -> None:
    paths = whole(tmp_path)
    with pytest.raises(ModelError, match=re.escape(f"part 2 of 3; name the first, {paths[0].name}.")):
        open_checkpoint(paths[1]).settings()
    renamed = paths[0].rename(tmp_path / "model.gguf")
    with pytest.raises(ModelError, match=re.escape("so its name must end in -00001-of-00003.gguf.")):
        open_checkpoint(renamed).settings()


def test_headers_of_all_parts_have_the_bound_of_one(tmp_path: Path) -> None:
    paths = whole(tmp_path)
    sizes = [open_gguf(path, Files()).values for path in paths]
    most = sizes[0] + sizes[1] - 1
    assert most > max(sizes)
    with pytest.raises(ModelError, match=f"more than {most} values in its header") as raised:
        open_checkpoint(paths[0], max_file_bytes=32 * most).settings()
    assert raised.value.message.startswith(f"{paths[1]}: ")
    open_checkpoint(paths[0], max_file_bytes=32 * sum(sizes)).settings()
