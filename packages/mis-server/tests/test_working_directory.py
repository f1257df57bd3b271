"""Files of the working directory are not imported, whatever they are called."""

import json
import subprocess
import sys
import urllib.request
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from mis_testing.server import RunningServer, running_server

_RUNPY = {"importlib", "warnings", "contextlib", "collections", "keyword", "operator", "reprlib", "functools", "types"}
"""What `python -m` imports by itself, before any code of ours runs."""

_OURS = ("mis_kernels", "mis_core", "mis_server", "mis_bench", "mis_testing")


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a file for every module that is installed, which notes that it was imported."""
    folder = tmp_path_factory.mktemp("planted")
    names = {name.partition(".")[0] for name in packages_distributions()} | set(sys.stdlib_module_names)
    for name in names - {*_OURS} - _RUNPY:
        if name.isidentifier():
            note = f"open({str(folder / 'imported')!r}, 'a').write({name!r} + '\\n')\nraise ImportError({name!r})\n"
            (folder / f"{name}.py").write_text(note)
    assert {"scipy", "regex", "transformers", "numpy", "json"} <= {path.stem for path in folder.iterdir()}
    return folder


def test_a_planted_file_is_imported_where_nothing_prevents_it(planted: Path) -> None:
    subprocess.run([sys.executable, "-c", "import scipy"], cwd=planted, capture_output=True, check=False)
    assert (planted / "imported").read_text() == "scipy\n"
    (planted / "imported").unlink()


def test_the_command_imports_nothing_from_there(planted: Path) -> None:
    command = [sys.executable, "-m", "mis_server", "--version"]
    done = subprocess.run(command, cwd=planted, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not (planted / "imported").exists()


def test_no_process_of_a_server_imports_from_there(
    planted: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(planted)
    with running_server(checkpoint, "--skip-warmup", "--context-length", "128") as server:
        assert len(server.children) >= 3  # the engine and tokenizers
        asked = {"query": "Do cats purr?", "items": ["Yes"], "labels": ["a"]}
        assert post(server, "/v1/score", asked)["object"] == "scoring"
        chat = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}
        assert post(server, "/v1/chat/completions", chat)["object"] == "chat.completion"
    assert not (planted / "imported").exists()


def post(server: RunningServer, path: str, body: dict[str, object]) -> dict[str, object]:
    request = urllib.request.Request(
        server.base_url + path, json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=240) as reply:
        return json.load(reply)
