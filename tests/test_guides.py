"""The commands of guides run as they stand, against a real server with a tiny checkpoint."""

import ast
import json
import re
import subprocess
from pathlib import Path

import httpx
import pytest

from mis_testing.options import SMALL_ENGINE
from mis_testing.server import RunningServer

GUIDES = Path(__file__).parents[1] / "docs" / "guides"
SMALL = "".join(f", {name}={value!r}" for name, value in SMALL_ENGINE.items())
URL = "http://127.0.0.1:30000"


def blocks(name: str, language: str) -> list[str]:
    page = (GUIDES / name).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", page, re.MULTILINE | re.DOTALL)


def changed(code: str, *changes: tuple[str, str]) -> str:
    """Replace what a tiny checkpoint or this server does not have."""
    for old, new in changes:
        assert old in code
        code = code.replace(old, new)
    return code


def run_guide(name: str, *changes: tuple[str, str]) -> None:
    """Run every block of Python of a page, one after the other."""
    exec(compile(changed("\n".join(blocks(name, "python")), *changes), name, "exec"), {})


def test_the_guide_from_openai(
    server: RunningServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "*")
    models = httpx.get(f"{server.base_url}/v1/models", trust_env=False).json()
    name = models["data"][0]["id"]
    run_guide("from-openai.md", (URL, server.base_url), ('"qwen"', repr(name)), ("[9693, 2152]", "[7, 8]"))
    best, labels, *streamed, answered = capsys.readouterr().out.splitlines()
    assert len(ast.literal_eval(best)) == 20
    assert sum(ast.literal_eval(labels).values()) == pytest.approx(1)
    assert "completion_tokens=1" in streamed[-1]
    written, _ = map(int, answered.split())
    assert 0 < written <= 40


@pytest.mark.parametrize("page", ["../../README.md", "../index.md", "quickstart.md"])
def test_the_first_example(
    page: str,
    server: RunningServer,
    checkpoint: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NO_PROXY", "*")
    local = [('"Qwen/Qwen3-0.6B"', f"{str(checkpoint)!r}{SMALL}")] if page == "quickstart.md" else []
    run_guide(page, (URL, server.base_url), *local)
    printed = [line.split("  ") for line in capsys.readouterr().out.splitlines()]
    (shown,) = (block for block in blocks(page, "text") if len(block.splitlines()) == 3)
    assert [review for _, review in printed] == [line.split("  ")[1] for line in shown.splitlines()]
    assert all(0 <= float(positive) <= 1 for positive, _ in printed)


@pytest.mark.parametrize(("page", "shown"), [("../../README.md", 20), ("../index.md", 6)])
def test_the_output_of_the_demonstration_is_of_its_reviews(page: str, shown: int) -> None:
    example = (GUIDES.parents[1] / "examples" / "rank_reviews.py").read_text(encoding="utf-8")
    (output,) = (block for block in blocks(page, "text") if "are right" in block)
    reviews = re.findall(r"^ +0\.\d{3} +0\.\d{3} +yes +(.+)$", output, re.MULTILINE)
    assert len(reviews) == shown
    assert all(f'"{review}"' in example for review in reviews)


def test_the_guide_to_rerank(server: RunningServer, checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (curl,) = (block for block in blocks("rerank.md", "bash") if block.startswith("curl"))
    command = changed(curl, (URL, server.base_url), ("curl ", "curl --noproxy '*' --silent --fail "))
    reply = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True).stdout
    (best,) = json.loads(reply)["results"]
    assert best["document"]["text"] == ["It rains.", "Cats sleep all day."][best["index"]]
    run_guide("rerank.md", ('"Qwen/Qwen3-Reranker-0.6B"', f"{str(checkpoint)!r}{SMALL}"))
    ranking = ast.literal_eval(capsys.readouterr().out)
    assert {index for index, _ in ranking} == {0, 1}
    assert [score for _, score in ranking] == sorted((score for _, score in ranking), reverse=True)
