"""The stall benchmark, at four times its bounds: no attack holds up the others, or the end."""

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

from mis_core.tasks.limits import Limits
from mis_core.tasks.served import tasks_of
from mis_core.tokenization import Tokenizer

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.mark.parametrize(
    "options",
    [
        ["--attacks", "texts,bodies,bombs"],
        pytest.param([], marks=pytest.mark.full),
        # The server is told to stop in the midst of it.
        pytest.param(["--head", "--after", "0"], marks=pytest.mark.full),
        pytest.param(["--after", "0", "--attacks", "texts,costs", "--clients", "16"], marks=pytest.mark.full),
    ],
)
def test_attacks_hold_up_nobody_and_leave_nothing_behind(options: list[str]) -> None:
    short = ("--seconds", "3", "--before", "1", "--after", "1", "--clients", "2", "--small", "--slack", "4")
    command = [sys.executable, str(BENCHMARKS / "stall.py"), *short, *options]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr[-4000:]


@pytest.mark.full
def test_a_large_request_is_measured_beside_many_callers() -> None:
    """Bounds of times are for machines that do nothing else; `test_large_beside_small.py` of mis-core counts steps."""
    command = [sys.executable, str(BENCHMARKS / "stall.py"), "--callers", "20", "--items", "3000", "--slack", "1000"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr[-4000:]
    assert re.findall(r"^(large|p50|p99)", run.stdout, re.MULTILINE) == ["large", "p50", "p99", "large"]


def test_every_text_route_gets_a_body_just_below_the_limits(
    connect: Callable[..., httpx.Client], pretended: Any
) -> None:
    worst_requests = runpy.run_path(str(BENCHMARKS / "worst_requests.py"))["worst_requests"]
    http = connect()
    sent = set()
    for head_labels, only in (((), None), (("no", "yes"), None), (("no", "yes"), "token_classify")):
        served = {"head_labels": head_labels, "only_task": only}
        pretended.info = msgspec.structs.replace(pretended.info, context_length=4096, **served)
        first = dict(reversed(worst_requests(small=True, head=bool(head_labels))))
        of_tokens = {path: body for path, body in first.items() if path.endswith("token_classify")}
        of_others = {path: body for path, body in first.items() if path not in of_tokens}
        for path, body in (of_tokens if only else of_others).items():
            reply = http.post(path, content=body, headers={"content-type": "application/json"})
            assert reply.status_code == 200, (path, reply.text[:500])
            sent.add(without_version(path))
    paths = http.get("/openapi.json").json()["paths"]
    assert sent == {without_version(path) for path in paths if "requestBody" in paths[path].get("post", {})}


@pytest.mark.parametrize("head", [False, pytest.param(True, marks=pytest.mark.full)])
def test_of_every_task_what_costs_most_for_each_byte_is_sent(
    checkpoint: Path, tokenizer: Tokenizer, head: bool
) -> None:
    costliest = runpy.run_path(str(BENCHMARKS / "costliest.py"))
    limits = Limits(context_length=4096, vocab_size=1024, head_labels=("no", "yes") if head else ())
    highest: dict[str, float] = {}
    for path, body in costliest["costliest_requests"](str(checkpoint), True, head):
        task = costliest["_PATHS"].get(path)
        cost = len(body) if task is None else costliest["cost"](task, body, tokenizer, limits)
        highest[path] = max(highest.get(path, 0), cost / len(body))
    tasks = {path for path, task in costliest["_PATHS"].items() if task.name in tasks_of(tokenizer, limits)}
    assert highest.keys() == tasks | {"/tokenize"}
    assert highest["/v1/score"] > 20
    assert highest["/v1/rerank"] > 20  # each of its documents repeats the end of the query
    assert min(highest.values()) > 0.5


def without_version(path: str) -> str:
    """Name a route, not one of its aliases."""
    return re.sub(r"^/v\d+", "", path)
