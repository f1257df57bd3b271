"""GGUF files of one model: one, or the parts that `llama-gguf-split` and llama.cpp's converter make of it.

Parts are named `NAME-00001-of-00003.gguf` and so on. Each says in its header which part it is, from 0 on (`split.no`);
the first says how many there are (`split.count`), how many tensors they have together (`split.tensors.count`), and all
that a single file would say. Source: `src/llama-model-loader.cpp` of llama.cpp at 00347649 (2026).
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mis_core.checkpoints.files import WEIGHTS, Files, is_there
from mis_core.checkpoints.gguf_reader import open_gguf
from mis_core.errors import ModelError, shown

_NUMBERED = re.compile(r"(?P<name>.*)-(?P<part>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)
_NO, _COUNT, _TENSORS = "split.no", "split.count", "split.tensors.count"
# What a part says of itself alone. The first three are no settings, but what the `gguf` package counts as such.
_OF_ONE_FILE = ("GGUF.version", "GGUF.tensor_count", "GGUF.kv_count", "general.alignment", _NO)


@dataclass(frozen=True, slots=True, eq=False)
class GgufModel:
    """What the headers of a model's files say.

    Attributes:
        paths: The files, in the order of their numbers.
        fields: Fields of the first by their names, as the `gguf` package has them.
        tensors: Tensors of all, as the `gguf` package has them, mapped into memory.
    """

    paths: tuple[Path, ...]
    fields: dict[str, Any]
    tensors: list[Any]


def part_paths(path: Path) -> list[Path]:
    """Return the files that a model has by the name of one of them, whether or not they are there."""
    found = _NUMBERED.fullmatch(path.name)
    if found is None:
        return [path]
    return [_part(path, found["name"], part, int(found["count"])) for part in range(int(found["count"]))] or [path]


def model_stem(path: Path) -> str:
    """Return the name of a GGUF file without its suffix, and without the number of a part."""
    found = _NUMBERED.fullmatch(path.name)
    return path.stem if found is None else found["name"]


def open_parts(path: Path, files: Files) -> GgufModel:
    """Read the headers of a model's files; no tensor is read.

    Args:
        path: The only file, or the first part.
        files: What bounds the headers: those of all parts together have the bound of one.

    Raises:
        ModelError: as `open_gguf`; or this is another part than the first, one is missing, or they do not belong
            together.
    """
    first = open_gguf(path, files)
    count = _number(path, first.fields, _COUNT) if _COUNT in first.fields else 1
    if count in (0, 1):
        return GgufModel((path,), first.fields, first.tensors)
    paths = _named_by(path, _number(path, first.fields, _NO), count)
    for each in paths[1:]:
        if not is_there(each):
            raise ModelError(f"{each}: missing, though {path.name} is there.")
        files.check(each, WEIGHTS)
    values, holders = first.values, {tensor.name: path for tensor in first.tensors}
    tensors = list(first.tensors)
    for number, each in enumerate(paths[1:], start=1):
        part = open_gguf(each, files, values)
        values = part.values
        _check_belongs(each, part.fields, number, path, first.fields)
        for tensor in part.tensors:
            if tensor.name in holders:
                both = f"{holders[tensor.name].name} and {each.name}"
                raise ModelError(f"{path}: both {both} hold tensor {shown(tensor.name, 200)}.")
            holders[tensor.name] = each
        tensors += part.tensors
    expected = _number(path, first.fields, _TENSORS)
    if len(tensors) != expected:
        raise ModelError(f"{path}: {_TENSORS} = {expected}, but its {count} parts have {len(tensors)}.")
    return GgufModel(tuple(paths), first.fields, tensors)


def _named_by(path: Path, number: int, count: int) -> list[Path]:
    """Return the paths of all parts by that of the first."""
    found = _NUMBERED.fullmatch(path.name)
    if found is None or (int(found["part"]), int(found["count"])) != (number + 1, count):
        raise ModelError(
            f"{path}: its header says part {number + 1} of {count}, so its name must end in "
            f"-{number + 1:05}-of-{count:05}.gguf."
        )
    paths = part_paths(path)
    if number:
        raise ModelError(f"{path}: this is part {number + 1} of {count}; name the first, {paths[0].name}.")
    return paths


def _check_belongs(path: Path, fields: dict[str, Any], number: int, first: Path, expected: dict[str, Any]) -> None:
    """Refuse a part of another model, or another part of this one: it may say less than the first, nothing else."""
    if _number(path, fields, _NO) != number:
        raise ModelError(f"{path}: {_NO} = {_number(path, fields, _NO)}, but by its name it is {number}.")
    for name in fields:
        if name in _OF_ONE_FILE:
            continue
        if name not in expected or _value(path, fields, name) != _value(first, expected, name):
            raise ModelError(
                f"{path}: {shown(name, 80)} differs from that of {first.name}; it is part of another model."
            )


def _number(path: Path, fields: dict[str, Any], name: str) -> int:
    value = _value(path, fields, name) if name in fields else None
    if not isinstance(value, int):
        raise ModelError(f"{path}: {name} is missing or not a whole number.")
    return value


def _value(path: Path, fields: dict[str, Any], name: str) -> Any:
    try:
        return fields[name].contents()
    except UnicodeDecodeError:
        raise ModelError(f"{path}: {shown(name, 80)} is not UTF-8.") from None


def _part(path: Path, name: str, part: int, count: int) -> Path:
    return path.with_name(f"{name}-{part + 1:05}-of-{count:05}.gguf")
