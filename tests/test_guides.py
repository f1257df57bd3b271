"""The Python of guides runs as it stands, against a real server with a tiny checkpoint."""

import ast
import re
from pathlib import Path

import httpx
import pytest

from mis_testing.server import RunningServer

GUIDES = Path(__file__).parents[1] / "docs" / "guides"


def run_guide(name: str, server: RunningServer, *changes: tuple[str, str]) -> None:
    """Run every block of Python of a page, one after the other; `changes` name what a tiny checkpoint does not have."""
    page = (GUIDES / name).read_text(encoding="utf-8")
    code = "\n".join(re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL))
    for old, new in (("http://127.0.0.1:30000", server.base_url), *changes):
        assert old in code
        code = code.replace(old, new)
    exec(compile(code, name, "exec"), {})


def test_the_guide_from_openai(
    server: RunningServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "*")
    models = httpx.get(f"{server.base_url}/v1/models", trust_env=False).json()
    name = models["data"][0]["id"]
    run_guide("from-openai.md", server, ('"qwen"', repr(name)), ("[9693, 2152]", "[7, 8]"))
    best, labels, *streamed = capsys.readouterr().out.splitlines()
    assert len(ast.literal_eval(best)) == 20
    assert sum(ast.literal_eval(labels).values()) == pytest.approx(1)
    assert "completion_tokens=1" in streamed[-1]
