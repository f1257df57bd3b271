"""The worst texts that a server admits, and what they do to everybody else.

    python packages/mis-server/benchmarks/stall.py [--model FOLDER] [--seconds 60] [--clients 16] [--slack 1]

Clients in a process of their own send, over and over, long runs without boundaries, bodies up to the limit, and tails
that every item repeats, to every endpoint that takes text; some wait for the answer, some leave, some name a short
deadline. Beside them `/health` is asked twenty times a second, and an ordinary text request four times a second. In the
middle of it all the server is told to stop.

Prints how many requests were answered and how, and all three figures. Exits with 1 if `/health` took more than 250 ms
at the 99th percentile, a text request more than two seconds, or the end more than `--shutdown-timeout` and two seconds,
each times `--slack`.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import multiprocessing
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from multiprocessing.synchronize import Event
from pathlib import Path

import httpx
import numpy as np

from mis_testing.checkpoint import tiny_checkpoint
from mis_testing.server import running_server

HEALTH_S, TEXT_S, STOP_S = 0.25, 2.0, 2.0
_SHUTDOWN_S = 5
_ANSWERED = "http_requests_total"
_ORDINARY = {
    "query": "Does the document answer the question of how long a text may be? " * 4,
    "items": [f"Document {number}: it says that {number} words are enough for anybody." for number in range(10)],
    "labels": ["a", "b"],
    "apply_softmax": True,
}


def worst_requests(small: bool) -> list[tuple[str, bytes]]:
    """Return paths and bodies; `small` ones for machines that are to be spared."""
    scale = 8 if small else 1
    rng = random.Random(0)
    letters = "".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=2_000_000 // scale))
    rare = "".join(map(chr, rng.choices(range(0x10000, 0x1F000), k=1_000_000 // scale)))
    label = {"label_token_ids": [1]}
    items = 2000 // scale
    user = {"role": "user", "content": "a"}
    call = {
        "type": "function",
        "function": {"name": "a", "arguments": json.dumps({"a": list(range(100_000 // scale))})},
    }
    chat, one = "/v1/chat/completions", {"max_tokens": 1, "n": 128, "logprobs": True, "top_logprobs": 20}
    decisions = [{"type": "predicate", "instructions": letters[:500]}] * 400
    choices = [{"value": f"{number} {letters[number : number + 20]}"} for number in range(80)]
    completions, completed = "/v1/completions", {"max_tokens": 1, "logprobs": 20, "echo": True}
    rerank, documents = "/v1/rerank", ["-" * 1000] * (1000 // scale)
    rotated = [{"type": "choice", "instructions": "-" * 500, "choices": choices}] * (400 // scale)
    bodies = [
        (chat, {"messages": [{"role": "user", "content": letters}]} | one),
        (chat, {"messages": [user] * 4096} | one),
        (
            chat,
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "-" * 1000}] * (4096 // scale)}]} | one,
        ),
        (chat, {"messages": [{"role": "assistant", "tool_calls": [call]}]} | one),
        (chat, {"messages": [user], "label_token_ids": list(range(900))} | one),
        (chat, {"messages": [user], "labels": list(letters)} | one),
        ("/v1/decisions", {"input": letters, "questions": decisions}),
        ("/v1/decisions", {"input": "-" * 65_000, "questions": decisions}),
        ("/v1/decisions", {"input": "a", "questions": rotated, "choice_order": "independent"}),
        (completions, {"prompt": letters} | completed),
        (completions, {"prompt": "-" * 65_000} | completed),
        (completions, {"prompt": ["-" * 1000] * (1000 // scale)} | completed),
        (completions, {"prompt": [[7] * 1000] * (1000 // scale)} | completed),
        (completions, {"prompt": "a", "max_tokens": 1, "n": 128, "logprobs": 20}),
        (rerank, {"query": "a", "documents": documents}),
        (rerank, {"query": "a", "documents": documents, "max_tokens_per_doc": 9}),
        (rerank, {"query": "a", "documents": ["a"] * (20_000 // scale), "return_documents": True}),
        (rerank, {"query": "a", "documents": [letters]}),
        (rerank, {"query": letters[:120_000], "documents": ["a"]}),
        (rerank, {"query": "a", "documents": [rare[:200]] * (20_000 // scale), "max_tokens_per_doc": 3}),
        ("/tokenize", {"prompt": "-" * (4_000_000 // scale)}),
        ("/tokenize", {"prompt": letters, "return_token_strs": True}),
        ("/tokenize", {"prompt": rare}),
        ("/tokenize", {"prompt": letters[:120_000]}),
        ("/detokenize", {"tokens": list(range(100, 900)) * (1000 // scale)}),
        ("/v1/score", {"query": "a " + "-" * 65_000, "items": ["x"] * 1000} | label),  # refused
        ("/v1/score", {"query": "a " + "-" * 65_000, "items": ["x"] * (60 // scale)} | label),
        ("/v1/score", {"query": "a " + "-" * 1000, "items": ["x"] * 129} | label),
        ("/v1/score", {"query": "-" * 1000, "items": ["x"] * 12, "item_first": True} | label),
        ("/v1/score", {"query": "a" * 120_000, "items": ["x"]} | label),
        ("/v1/score", {"query": letters, "items": ["x"]} | label),
        ("/v1/score", {"query": "a", "items": [rare[:200]] * (20_000 // scale)} | label),
        ("/v1/score", {"query": "a", "items": ["b"], "labels": [letters]}),
        ("/v1/score", {"query": "a", "items": ["b"], "labels": list(letters)}),
        ("/v1/score", {"query": [1], "items": [[7] * 250] * (60_000 // scale)} | label),
        ("/v1/score", {"query": [1], "items": [[[]]] * (10_000_000 // scale)} | label),
        ("/v1/score", {"query": [1], "items": [[2]] * items, "label_token_ids": list(range(900))}),
        (
            "/v1/score",
            {"query": [1], "items": [[2]] * items, "label_token_ids": [list(range(900)), *[[3]] * (items - 1)]},
        ),
    ]
    return [(path, json.dumps(body, ensure_ascii=False).encode()) for path, body in bodies]


def attack(url: str, clients: int, small: bool, began: Event) -> None:
    """Send the worst requests until this process is ended; say when it began."""
    asyncio.run(_attack(url, clients, worst_requests(small), began))


async def _attack(url: str, clients: int, requests: list[tuple[str, bytes]], began: Event) -> None:
    async def client(number: int) -> None:
        statuses: Counter[str] = Counter()
        # From places all over the list, so that a short run sends every kind.
        for turn in itertools.count(number * len(requests) // clients):
            path, body = requests[turn % len(requests)]
            headers = {"content-type": "application/json"}
            if turn % 3 == 1:
                headers["x-request-timeout"] = "0.5"
            leaves_s = 0.3 if turn % 3 == 2 else 600
            try:
                async with asyncio.timeout(leaves_s):
                    reply = await http.post(path, content=body, headers=headers)
                statuses[str(reply.status_code)] += 1
            except (httpx.TransportError, TimeoutError) as error:
                statuses[type(error).__name__] += 1
                await asyncio.sleep(0.05)
            if statuses.total() == 1:
                began.set()

    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=600, limits=limits) as http:
        await asyncio.gather(*map(client, range(clients)))


def probe(ask: Callable[[], httpx.Response], period_s: float, ends: threading.Event) -> list[float]:
    """Ask at set times; return the seconds from each to its answer, so that one that is late makes the next late."""
    taken = []
    due = time.monotonic()
    while not ends.is_set():
        status = ask().status_code
        assert status == 200, status
        taken.append(time.monotonic() - due)
        due += period_s
        ends.wait(max(0.0, due - time.monotonic()))
    return taken


@contextlib.contextmanager
def attacked(url: str, clients: int, small: bool) -> Iterator[None]:
    """Surround what is measured by the attack."""
    context = multiprocessing.get_context("spawn")
    began = context.Event()
    process = context.Process(target=attack, args=(url, clients, small, began), daemon=True)
    process.start()
    try:
        began.wait()
        yield
    finally:
        process.kill()
        process.join()


def main() -> None:
    """Measure, print and judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="checkpoint; default: a small random one")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--slack", type=float, default=1, help="how many times the bounds are allowed")
    parser.add_argument("--small", action="store_true", help="send texts of an eighth of the length")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        model = chosen.model or str(tiny_checkpoint(Path(folder, "model"), max_position_embeddings=4096))
        server = stack.enter_context(
            running_server(model, "--shutdown-timeout", str(_SHUTDOWN_S), "--disable-access-log", stop_timeout_s=120)
        )
        http = stack.enter_context(httpx.Client(base_url=server.base_url, trust_env=False, timeout=600))
        http.post("/v1/score", json=_ORDINARY).raise_for_status()
        ends, taken = threading.Event(), {"health": [], "text": []}

        def ask(name: str, call: Callable[[], httpx.Response], period_s: float) -> threading.Thread:
            thread = threading.Thread(target=lambda: taken[name].extend(probe(call, period_s, ends)))
            thread.start()
            return thread

        with attacked(server.base_url, chosen.clients, chosen.small):
            threads = [
                ask("health", lambda: http.get("/health"), 0.05),
                ask("text", lambda: http.post("/v1/score", json=_ORDINARY), 0.25),
            ]
            time.sleep(chosen.seconds)
            ends.set()
            for thread in threads:
                thread.join()
            answered = [line for line in http.get("/metrics").text.splitlines() if line.startswith(_ANSWERED)]
            processes = len(server.children)
            server.process.send_signal(signal.SIGTERM)
            began = time.monotonic()
            server.process.wait(600)
            stopped_s = time.monotonic() - began
        errors = server.stderr.count("Traceback")
    health, text = np.array(taken["health"]), np.array(taken["text"])
    health_s = float(np.percentile(health, 99))
    for line in answered:
        sys.stdout.write(line.removeprefix(_ANSWERED) + "\n")
    sys.stdout.write(
        f"/health   {len(health):5} answers, median {np.median(health) * 1e3:.0f} ms, p99 {health_s * 1e3:.0f} ms\n"
        f"text      {len(text):5} answers, median {np.median(text) * 1e3:.0f} ms, longest {text.max() * 1e3:.0f} ms\n"
        f"{processes} processes beside the server's own\n"
        f"stopped after {stopped_s:.1f} s, of which {_SHUTDOWN_S} s were granted; {errors} tracebacks in the log\n"
    )
    bad = health_s > HEALTH_S * chosen.slack or text.max() > TEXT_S * chosen.slack
    if bad or stopped_s > _SHUTDOWN_S + STOP_S * chosen.slack or errors:
        sys.exit("Beyond the bounds.")


if __name__ == "__main__":
    main()
