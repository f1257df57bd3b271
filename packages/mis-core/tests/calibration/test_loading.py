"""A calibration is applied to the model that it was fitted to, and to no other without a word."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mis_core.calibration import Calibrations
from mis_core.calibration.loading import checked, identity_of, read_calibrations
from mis_core.checkpoints import ModelPart
from mis_core.config import EngineConfig
from mis_core.errors import ConfigError
from mis_core.hub import resolve
from mis_core.tokenization import Tokenizer
from mis_testing import tiny_checkpoint
from mis_testing.gguf_file import write_gguf

PARTS = (ModelPart("base", "model", "of some blocks"),)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def model(checkpoint: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(checkpoint, tmp_path / "model"))


def gguf_of(model: Path) -> Path:
    path = model.parent / "gguf" / "model.gguf"
    path.parent.mkdir()
    write_gguf(path, model)
    return path


def digest(model: Path) -> str:
    return Tokenizer.from_pretrained(model).digest


def calibrate(model: Path, parts: tuple[ModelPart, ...] = PARTS, **options: Any) -> None:
    """Write a calibration of a model, without entries, beside it."""
    identity = identity_of(EngineConfig(model=str(model), **options), parts, "float32", digest(model))
    beside = model if model.is_dir() else model.parent
    Calibrations(identity, ()).write(beside / "mis-calibration.json", "test")


def load(model: Path, parts: tuple[ModelPart, ...] = PARTS, dtype: str = "float32", **options: Any) -> Any:
    config = resolve(EngineConfig(model=str(model), **options))
    read = read_calibrations(config)
    return None if read is None else checked(read, config, parts, dtype, digest(model))


def change_a_byte(path: Path) -> None:
    """Change a byte in the middle of a file, which keeps its size and its time."""
    stat, data = path.stat(), bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


@pytest.mark.parametrize("form", [lambda model: model, gguf_of])
def test_a_byte_of_the_weights_makes_another_model(model: Path, form: Callable[[Path], Path]) -> None:
    path = form(model)
    calibrate(path)
    assert load(path) == load(path)  # the second time from what is kept of the first
    assert load(path).mismatch == ()
    change_a_byte(path if path.is_file() else path / "model.safetensors")
    with pytest.raises(ConfigError, match=r"another model, which differs in weights\. Fit it") as refused:
        load(path)
    assert refused.value.option == "calibration"


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"dtype": "bfloat16"}, "differs in dtype"),
        ({"quantization": "int8"}, "differs in quantization"),
        ({"parts": (*PARTS, ModelPart("head", "h", "1"))}, "differs in head"),
        ({"parts": (*PARTS, ModelPart("adapter", "a", "1"))}, "differs in adapter"),
        ({"dtype": "bfloat16", "quantization": "int8"}, "differs in dtype, quantization"),
    ],
)
def test_what_else_the_logits_depend_on_makes_another_model(model: Path, change: dict[str, Any], what: str) -> None:
    calibrate(model)
    with pytest.raises(ConfigError, match=what):
        load(model, **change)
    warned = load(model, **change, calibration_mismatch="warn")
    assert warned.mismatch == tuple(what.removeprefix("differs in ").split(", "))


def test_another_tokenizer_makes_another_model(model: Path, tmp_path: Path) -> None:
    calibrate(model)
    other = tiny_checkpoint(tmp_path / "llama", "llama", num_hidden_layers=1)
    with pytest.raises(ConfigError, match="differs in weights, tokenizer"):
        load(other, calibration=str(model / "mis-calibration.json"))


def test_other_settings_make_another_model(model: Path) -> None:
    calibrate(model)
    settings = model / "config.json"
    settings.write_text(settings.read_text().replace('"rope_theta": ', '"rope_theta": 1'))
    with pytest.raises(ConfigError, match="differs in weights"):
        load(model)


def test_the_file_comes_from_the_option_or_lies_beside_the_model(model: Path, tmp_path: Path) -> None:
    assert resolve(EngineConfig(model=str(model))).calibration is None
    assert load(model) is None
    calibrate(model)
    assert resolve(EngineConfig(model=str(model))).calibration == str(model / "mis-calibration.json")
    assert load(model, calibration="none") is None
    with pytest.raises(ConfigError, match="cannot be read"):
        load(model, calibration=str(tmp_path / "other.json"))
    with pytest.raises(ConfigError, match="calibration_mismatch must be one of error, warn"):
        EngineConfig(model=str(model), calibration_mismatch="ignore")


def test_the_file_beside_a_decision_head_is_found(model: Path, tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "any2jev.json").write_text(json.dumps({"base": str(model)}))
    (package / "mis-calibration.json").write_text("{}")
    found = resolve(EngineConfig(model=str(package)))
    assert (found.model, found.calibration) == (str(model), str(package / "mis-calibration.json"))


def test_where_nothing_can_be_kept_the_weights_are_read_again(model: Path, tmp_path: Path) -> None:
    calibrate(model)
    folder = tmp_path / "cache" / "mis" / "checksums"
    for each in folder.iterdir():
        each.write_text("{")
    assert load(model).mismatch == ()
    shutil.rmtree(folder)
    folder.write_text("no folder")
    assert load(model).mismatch == ()
