"""Which files hold a checkpoint's tensors: those that `transformers` reads.

Where it reads none, since no file has a name that it knows, one file is read, or one complete set of numbered parts.
What could be read in two ways is refused.
"""

import re
from pathlib import Path
from typing import Any

from mis_core.checkpoints.decision_files import HEAD_WEIGHTS
from mis_core.checkpoints.files import Files, inside, is_there
from mis_core.errors import ModelError, shown

_WHOLE = "model.safetensors"
_INDEX = ".safetensors.index.json"
_PART = re.compile(r"(?P<name>.*)-(?P<part>\d{5})-of-(?P<parts>\d{5})\.safetensors", re.DOTALL)
_ADAPTER = "adapter_config.json"
_SETTING = "transformers_weights"


def weight_files(folder: Path, settings: dict[str, Any], files: Files) -> list[Path]:
    """Return the files that hold the tensors, in the order in which `transformers` reads them.

    Args:
        folder: The checkpoint.
        settings: What its `config.json` holds.
        files: Opens its files.

    Raises:
        ModelError: there are none, one is not there or no regular file, or several could be meant.
    """
    if is_there(folder / _ADAPTER):
        raise ModelError(
            f"{folder / _ADAPTER}: transformers would apply the adapter in a model's folder, but MIS does not. "
            f"Move it into a folder for --merge-lora, or remove {_ADAPTER} to serve the model alone."
        )
    chosen = settings.get(_SETTING)
    if chosen is not None:
        if not isinstance(chosen, str) or not chosen.endswith((".safetensors", _INDEX)):
            raise ModelError(
                f"{folder / 'config.json'}: {_SETTING} must name a .safetensors file or an index of them, not "
                f"{shown(repr(chosen), 80)}."
            )
        found = inside(folder, chosen, f"{folder / 'config.json'}: {_SETTING}")
        return _of_index(folder, found, files) if chosen.endswith(_INDEX) else _checked([found], files)
    if is_there(folder / _WHOLE):  # what is beside it belongs to others, such as an older index
        return _checked([folder / _WHOLE], files)
    if is_there(folder / f"model{_INDEX}"):
        return _of_index(folder, folder / f"model{_INDEX}", files)
    return _checked(_without_index(folder), files)


def _of_index(folder: Path, index: Path, files: Files) -> list[Path]:
    """Return the files that an index names, from the checkpoint's folder on."""
    files_of = files.read_object(index).get("weight_map")
    if not isinstance(files_of, dict) or not files_of or not all(isinstance(name, str) for name in files_of.values()):
        raise ModelError(f"{index}: not a safetensors index, whose weight_map names the file of each tensor.")
    found = []
    for name in sorted(set(files_of.values())):
        path = inside(folder, name, f"{index}: weight_map")
        if not name.endswith(".safetensors"):
            raise ModelError(f"{index}: weight_map names {shown(repr(name), 80)}, which is not a .safetensors file.")
        if not is_there(path):
            raise ModelError(f"{path}: missing, though {index.name} names it.")
        found.append(path)
    return _checked(found, files)


def _without_index(folder: Path) -> list[Path]:
    """Return the only file, or the only set of numbered parts."""
    found = sorted(path for path in folder.glob("*.safetensors") if path.name not in HEAD_WEIGHTS)
    if not found:
        raise ModelError(f"{folder}: no .safetensors files; other weight formats are not read.")
    first = _PART.fullmatch(found[0].name)
    parts = 0 if first is None else int(first["parts"])
    if first is None or parts == 0:
        expected = [found[0]]
    else:
        name, count = first["name"], first["parts"]
        expected = [folder / f"{name}-{part:05}-of-{count}.safetensors" for part in range(1, parts + 1)]
    lost = next((path for path in expected if path not in found), None)
    if lost is not None:
        raise ModelError(f"{lost}: missing, though {found[0].name} is there.")
    other = next((path for path in found if path not in expected), None)
    if other is not None:
        raise ModelError(
            f"{folder}: both {expected[0].name} and {other.name} may hold the weights; keep the right one, or "
            f"name them in model{_INDEX}."
        )
    return expected


def _checked(paths: list[Path], files: Files) -> list[Path]:
    for path in paths:
        files.check(path)
    return paths
