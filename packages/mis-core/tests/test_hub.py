"""Where a model and its tokenizer come from: directories, names, revisions."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub.utils import filter_repo_objects

from mis_core import Engine
from mis_core.config import EngineConfig
from mis_core.errors import ConfigError, ModelError
from mis_core.hub import kept_at, resolve
from mis_core.tokenization import Tokenizer


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[dict[str, Any]]:
    """What the hub's client is asked for; it has everything."""
    calls: list[dict[str, Any]] = []

    def snapshot_download(name: str, **options: Any) -> str:
        calls.append({"name": name, **{key: options[key] for key in ("revision", "cache_dir")}})
        return str(tmp_path / name.replace("/", "--"))

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    return calls


def test_a_directory_is_taken_as_it_is(asked: list[Any], checkpoint: Path) -> None:
    config = EngineConfig(model=str(checkpoint))
    assert resolve(config) == config
    assert asked == []


def test_names_are_downloaded_at_their_revision_into_the_folder(asked: list[Any], tmp_path: Path) -> None:
    config = EngineConfig(model="a/model", revision="v1", download_dir="/models", tokenizer_path="a/tokenizer")
    local = resolve(config)
    assert (local.model, local.tokenizer) == (str(tmp_path / "a--model"), str(tmp_path / "a--tokenizer"))
    assert asked == [
        {"name": "a/model", "revision": "v1", "cache_dir": "/models"},
        {"name": "a/tokenizer", "revision": None, "cache_dir": "/models"},
    ]


def test_where_a_model_is_kept_is_known_of_any_text(tmp_path: Path) -> None:
    for path in (str(tmp_path), "/no/such/model", "./none", "path/to/Qwen3-0.6B", "none.gguf"):
        assert kept_at(path, "/models") == Path(path)
    assert kept_at("a/model", "/models") == Path("/models/models--a--model")
    assert kept_at("x" * 300, "/models").parent == Path("/models")


def test_the_files_that_describe_a_model_are_downloaded_not_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = ["README.md", "config.json", "1_LogitScore/config.json", "modeling_zeranker.py", "assets/plot.png"]
    wanted: list[str] = []

    def snapshot_download(name: str, *, allow_patterns: list[str], **options: Any) -> str:
        wanted.extend(filter_repo_objects(files, allow_patterns=allow_patterns))
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    resolve(EngineConfig(model="a/model"))
    assert wanted == files[:3]


def test_what_is_local_is_not_asked_for_again(asked: list[Any], tmp_path: Path) -> None:
    (tmp_path / "a--model").mkdir()
    local = resolve(EngineConfig(model="a/model", revision="v1"))
    asked.clear()
    assert resolve(local) == local
    assert asked == []


def test_a_file_is_taken_as_it_is(asked: list[Any], tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.touch()
    assert resolve(EngineConfig(model=str(file))).model == str(file)
    with pytest.raises(ModelError, match=r"Model file 'none\.gguf' does not exist"):
        resolve(EngineConfig(model="none.gguf"))
    assert asked == []


def test_a_revision_of_a_directory_is_refused(checkpoint: Path) -> None:
    with pytest.raises(ConfigError, match="given by name") as caught:
        resolve(EngineConfig(model=str(checkpoint), revision="main"))
    assert caught.value.option == "revision"


def test_a_revision_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: 1 / 0)
    with pytest.raises(ModelError, match="'a/model at v9' is neither a directory nor available"):
        resolve(EngineConfig(model="a/model", revision="v9"))


def test_an_engine_reads_the_tokenizer_that_it_is_given(
    checkpoint_factory: Callable[..., Path], engine_factory: Callable[..., Engine]
) -> None:
    model, other = checkpoint_factory("qwen3"), checkpoint_factory("llama")
    engine = engine_factory(model, tokenizer_path=str(other), skip_warmup=True)
    read = engine.tokenizer.within(None).to_json()
    assert read == Tokenizer.from_pretrained(other).to_json()
    assert read != Tokenizer.from_pretrained(model).to_json()
