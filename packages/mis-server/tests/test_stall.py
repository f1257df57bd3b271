"""The stall benchmark, at four times its bounds: no admitted text holds up the others, or the end."""

import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.mark.parametrize("options", [[], pytest.param(["--head"], marks=pytest.mark.full)])
def test_the_worst_texts_hold_up_nobody(options: list[str]) -> None:
    command = [sys.executable, str(BENCHMARKS / "stall.py"), "--seconds", "3", "--small", "--slack", "4", *options]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr[-4000:]


def test_of_every_route_that_takes_text_a_body_just_below_the_limits_is_sent(
    connect: Callable[..., httpx.Client], pretended: Any
) -> None:
    worst_requests = runpy.run_path(str(BENCHMARKS / "worst_requests.py"))["worst_requests"]
    http = connect()
    sent = set()
    for head_labels in ((), ("no", "yes")):
        pretended.info = msgspec.structs.replace(pretended.info, context_length=4096, head_labels=head_labels)
        first = dict(reversed(worst_requests(small=True, head=bool(head_labels))))
        for path, body in first.items():
            reply = http.post(path, content=body, headers={"content-type": "application/json"})
            assert reply.status_code == 200, (path, reply.text[:500])
            sent.add(without_version(path))
    paths = http.get("/openapi.json").json()["paths"]
    assert sent == {without_version(path) for path in paths if "requestBody" in paths[path].get("post", {})}


def without_version(path: str) -> str:
    """Name a route, not one of its aliases."""
    return re.sub(r"^/v\d+", "", path)
