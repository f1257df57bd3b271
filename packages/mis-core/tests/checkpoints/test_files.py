"""Which files of a checkpoint are opened: regular ones of bounded size, wherever links lead."""

import os
import re
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from mis_core.checkpoints import open_checkpoint
from mis_core.checkpoints.files import KINDS, MIB, Files, kind_of
from mis_core.config import EngineConfig
from mis_core.errors import ConfigError, ModelError, shown
from mis_core.models.config import read_model_config
from mis_core.models.weights import load_decoder
from mis_core.tokenization import Tokenizer
from mis_testing import tiny_checkpoint
from mis_testing.gguf_file import write_gguf


def as_hub_cache(folder: Path, target: Path) -> Path:
    """Lay a directory out as the hub's client does: contents by their hashes, names as relative links."""
    root = target / "models--a--model"
    snapshot = root / "snapshots" / "0123abcd"
    (root / "blobs").mkdir(parents=True)
    for number, file in enumerate(path for path in sorted(folder.rglob("*")) if path.is_file()):
        blob = root / "blobs" / f"{number:064x}"
        blob.write_bytes(file.read_bytes())
        name = snapshot / file.relative_to(folder)
        name.parent.mkdir(parents=True, exist_ok=True)
        name.symlink_to(os.path.relpath(blob, name.parent))
    return snapshot


def as_kubernetes_volume(folder: Path, target: Path) -> Path:
    """Lay a directory out as a volume of a config map: names lead through a link to the newest version."""
    version = target / "..2026_01_01_00_00_00.123"
    version.parent.mkdir(parents=True)
    folder.rename(version)
    (target / "..data").symlink_to(version.name)
    for file in version.iterdir():
        (target / file.name).symlink_to(f"..data/{file.name}")
    return target


@pytest.mark.parametrize("lay_out", [as_hub_cache, as_kubernetes_volume])
def test_links_are_followed(lay_out, tmp_path: Path) -> None:
    made = tiny_checkpoint(tmp_path / "made", "llama", num_hidden_layers=2, shards=2)
    embedding, tokenizer = weights(made), Tokenizer.from_pretrained(made).to_json()
    path = lay_out(made, tmp_path / "laid out")
    np.testing.assert_array_equal(weights(path), embedding)
    assert Tokenizer.from_pretrained(path).to_json() == tokenizer


def test_a_gguf_file_may_be_a_link_to_a_name_without_a_suffix(tmp_path: Path) -> None:
    made = tiny_checkpoint(tmp_path / "made", num_hidden_layers=1)
    write_gguf(tmp_path / "model.gguf", made).rename(tmp_path / "sha256-0123")  # as Ollama keeps them
    (tmp_path / "link").symlink_to("sha256-0123")
    for name in ("sha256-0123", "link"):
        np.testing.assert_array_equal(weights(tmp_path / name), weights(made))


def weights(path: Path) -> np.ndarray:
    return np.asarray(load_decoder(path, read_model_config(path), jnp.dtype("float32"), progress=False).embedding[...])


def test_signs_are_shown_escaped(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("---\ntags: ['\u202etag']\n---\n# A \x1b[31mred   model\n")
    assert [sign.text for sign in open_checkpoint(tmp_path).signs().names] == [r"A \x1b[31mred model", r"\u202etag"]


def test_a_path_that_is_no_model_is_called_what_it_is(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, said in ((tmp_path / "pipe", "is neither a directory nor"), (tmp_path / "none", "does not exist")):
        with pytest.raises(ModelError, match=f"Model directory '{path}' {said}"):
            open_checkpoint(path).settings()


def test_bounds_stand_far_above_published_files_and_have_a_flag(checkpoint: Path) -> None:
    assert [kind_of(name).max_bytes for name in ("tokenizer.json", "model.safetensors.index.json")] == [256 * MIB] * 2
    assert kind_of("config.json").max_bytes == kind_of("1_LogitScore/config.json").max_bytes == 16 * MIB
    assert kind_of("model-00001-of-00002.safetensors").max_bytes is None
    sizes = {kind.max_bytes for kind in KINDS}
    assert min(size for size in sizes if size) >= MIB
    said = "where {} may have 100 bytes; --max-checkpoint-file-bytes raises the limit."
    with pytest.raises(ModelError, match=re.escape(said.format("settings"))):
        read_model_config(open_checkpoint(checkpoint, max_file_bytes=100))
    with pytest.raises(ModelError, match=re.escape(said.format("settings of a tokenizer"))):
        (Files(100)).check(checkpoint / "tokenizer_config.json")
    with pytest.raises(ModelError, match="raises the limit"):
        Tokenizer.of(EngineConfig(model=str(checkpoint), max_checkpoint_file_bytes=100))
    open_checkpoint(checkpoint, max_file_bytes=1 << 40).tokenizer()
    with pytest.raises(ConfigError, match="max_checkpoint_file_bytes must be at least 1"):
        EngineConfig(model="model", max_checkpoint_file_bytes=0)


def test_a_file_of_a_small_size_and_many_values_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text("[" + "[]," * 99 + "[]]")
    with pytest.raises(ModelError, match="more than 32 values; --max-checkpoint-file-bytes raises the limit"):
        Files(1024).read_json(file)
    assert len(Files(8192).read_json(file)) == 100


def test_a_file_of_claimed_size_zero_is_read_only_to_its_bound(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.symlink_to("/proc/self/maps")
    if not file.exists():
        pytest.skip("needs /proc, which this system lacks")
    assert file.stat().st_size == 0
    with pytest.raises(ModelError, match="more, where settings may have 64 bytes"):
        Files(64).read(file)


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("plain ünïcode 中文", "plain ünïcode 中文"),
        ("\x1b[31mred\x07\n\r\t", r"\x1b[31mred\x07\n\r\t"),
        ("\u202eabc\u2028\x9b\x7f", r"\u202eabc\u2028\x9b\x7f"),
        ("\ud800", r"\ud800"),
        ("a" * 50, "a" * 39 + "…"),
        ("\x1b" * 50, r"\x1b" * 9 + r"\x1…"),
    ],
)
def test_text_of_files_is_shown_escaped_and_cut(text: str, seen: str) -> None:
    assert shown(text, 40) == seen
    assert shown(text, 40).isprintable()
    assert ModelError(text).message.isprintable()
