"""The guide "Classify and decide" works as it is written, against a real server and a real engine."""

import re
from pathlib import Path
from typing import Any

import openai
import pytest

from mis_core import Engine
from mis_testing.server import RunningServer

GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "classify-and-decide.md"


def test_the_guide_works(
    server: RunningServer, engine: Engine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setattr(Engine, "from_pretrained", lambda name: _Borrowed(engine))
    blocks = re.findall(r"^```python\n(.*?)^```", GUIDE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    code = "\n".join(blocks).replace("http://127.0.0.1:30000", server.base_url)
    names: dict[str, Any] = {}
    exec(compile(code.replace('"qwen"', repr(_name(server))), str(GUIDE), "exec"), names)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == code.count("print(") + 2  # one is in a loop over three answers
    assert [answer.type for answer in names["decision"].answers] == ["predicate", "choice", "score"]


def _name(server: RunningServer) -> str:
    with openai.OpenAI(base_url=f"{server.base_url}/v1", api_key="none") as client:
        return client.models.list().data[0].id


class _Borrowed:
    """An engine that others use after the guide has closed it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __enter__(self) -> Engine:
        return self._engine

    def __exit__(self, *error: object) -> None: ...
