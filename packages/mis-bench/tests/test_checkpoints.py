"""Checkpoints by name."""

import json
import sys
from pathlib import Path

import pytest

from mis_bench.checkpoints import CheckpointError, resolve_checkpoint
from mis_testing.published import PRUNED, SHAPES, divided
from mis_testing.shapes import CheckpointShape


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "mis-bench"


def test_a_directory_is_itself(tmp_path: Path) -> None:
    assert resolve_checkpoint(str(tmp_path)) == tmp_path
    (tmp_path / "config.json").symlink_to("/dev/zero")
    with pytest.raises(CheckpointError, match=r"config\.json"):
        resolve_checkpoint(str(tmp_path))


def test_a_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.touch()
    with pytest.raises(CheckpointError, match="is a file; measurements need a model directory"):
        resolve_checkpoint(str(file))


def test_a_random_checkpoint_is_written_once_and_complete(cache: Path) -> None:
    folder = resolve_checkpoint("random:qwen3-0.6b/64")
    written = (folder / "model.safetensors").stat().st_mtime_ns
    assert json.loads((folder / "config.json").read_text())["vocab_size"] == 151936
    assert resolve_checkpoint("random:qwen3-0.6b/64") == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == written
    assert [path.name for path in cache.iterdir()] == [folder.name]


def test_a_pruned_shape_has_fewer_layers() -> None:
    whole, pruned = SHAPES["qwen3-0.6b"], PRUNED["qwen3-0.6b-16-layers"]
    assert pruned == whole | {"num_hidden_layers": 16}
    folder = resolve_checkpoint("random:qwen3-0.6b-16-layers/64")
    assert json.loads((folder / "config.json").read_text())["hidden_size"] == 32


def test_a_write_that_fails_leaves_nothing_behind(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, **_: object) -> None:
        (path / "config.json").write_text("{}")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("mis_testing.checkpoint.tiny_checkpoint", full)
    with pytest.raises(CheckpointError, match="No space left on device"):
        resolve_checkpoint("random:qwen3-0.6b/64")
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize("shape", [*SHAPES, *PRUNED])
@pytest.mark.parametrize("divisor", [1, 2, 3, 16, 1000])
def test_divided_shapes_are_valid_and_no_larger(shape: str, divisor: int) -> None:
    sizes = divided((SHAPES | PRUNED)[shape], divisor)
    CheckpointShape.of(**sizes)
    assert len(sizes.get("layer_types", ())) in (0, sizes["num_hidden_layers"])
    assert sizes["num_hidden_layers"] % sizes.get("full_attention_interval", 1) == 0
    counted = [name for name in sizes if name.startswith(("num_", "hidden", "inter", "linear"))]
    assert all(0 < sizes[name] <= (SHAPES | PRUNED)[shape][name] for name in counted)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("random:qwen9", "no shape 'qwen9'; known are .*qwen3-0.6b"),
        ("random:qwen3-0.6b/", "DIVISOR"),
        ("random:qwen3-0.6b/0", "DIVISOR"),
        ("random:qwen3-0.6b/two", "DIVISOR"),
        ("./nowhere", "does not exist"),
    ],
)
def test_what_is_not_there_is_named(spec: str, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        resolve_checkpoint(spec)


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mis_testing.published", None)
    with pytest.raises(CheckpointError, match=r"mis-bench\[random\]"):
        resolve_checkpoint("random:qwen3-0.6b/64")
