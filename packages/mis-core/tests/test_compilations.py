"""What is compiled is kept for the next start; the count of compilations hears what it should, and ends."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import pytest
from jax._src.lru_cache import LRUCache

from mis_core.engine.compilations import Compilations, keep_compiled

START = Path(__file__).parent / "support" / "start_once.py"


def compile_something() -> None:
    jax.jit(lambda: 1).lower().compile()


def test_it_counts_from_its_beginning_to_its_stop() -> None:
    counted = Compilations()
    assert counted.count == 0
    compile_something()
    assert counted.count == 1
    counted.stop()
    counted.stop()
    compile_something()
    assert counted.count == 1


def test_a_counter_that_cannot_hear_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mis_core.engine.compilations._COMPILED", "/an/event/of/another/version")
    counted = Compilations()
    compile_something()
    assert counted.count is None
    counted.stop()


def started(checkpoint: Path, folder: Path) -> dict[str, Any]:
    """Start an engine in a process of its own."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_COMP", "JAX_PERSIST"))}
    command = [sys.executable, str(START), str(checkpoint), str(folder)]
    return json.loads(subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout)


def test_the_second_start_compiles_nothing(checkpoint: Path, tmp_path: Path) -> None:
    first, second = (started(checkpoint, tmp_path) for _ in range(2))
    assert first["compiled"] > 0
    assert first["read"] == 0
    assert second["compiled"] == 0
    assert second["read"] == first["compiled"]
    assert second["scores"] == first["scores"]


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What is set of JAX's configuration, in place of setting it."""
    found: dict[str, Any] = {}
    monkeypatch.setattr(jax.config, "update", found.__setitem__)
    return found


def test_cpus_that_execute_something_else_have_another_folder(
    tmp_path: Path, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_compiled(str(tmp_path))
    here = settings["jax_compilation_cache_dir"]
    monkeypatch.setattr("platform.machine", lambda: "another")
    keep_compiled(str(tmp_path))
    assert Path(here).parent == Path(settings["jax_compilation_cache_dir"]).parent == tmp_path
    assert here != settings["jax_compilation_cache_dir"]


def test_what_a_killed_process_left_half_written_is_removed(tmp_path: Path, settings: dict[str, Any]) -> None:
    """JAX looks up when each entry was last used, and writes none behind one that does not say."""
    keep_compiled(str(tmp_path))
    folder = Path(settings["jax_compilation_cache_dir"])
    cache = LRUCache(str(folder), max_size=2**20)
    cache.put("whole", b"1")
    (folder / "torn-cache").write_bytes(b"2")
    with pytest.raises(FileNotFoundError):
        cache.put("later", b"3")
    keep_compiled(str(tmp_path))
    cache.put("later", b"3")
    assert {path.name for path in folder.glob("*-cache")} == {"whole-cache", "later-cache"}


def test_what_the_environment_chose_is_left_alone(settings: dict[str, Any]) -> None:
    assert jax.config.jax_compilation_cache_dir is not None, "all tests share a folder"
    keep_compiled(None)
    assert settings == {}


def test_a_folder_that_cannot_be_made_is_done_without(
    tmp_path: Path, settings: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    keep_compiled(str(tmp_path / "file"))
    assert settings == {}
    assert "are not kept" in caplog.text
