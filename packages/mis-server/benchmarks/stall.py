"""The worst texts that a server admits, and what they do to everybody else.

    python packages/mis-server/benchmarks/stall.py [--model FOLDER] [--head] [--seconds 60] [--clients 16] [--slack 1]

Clients in a process of their own send, over and over, long runs without boundaries, bodies up to the limit, and tails
that every item repeats, to every endpoint that takes text; some wait for the answer, some leave, some name a short
deadline. Beside them `/health` is asked twenty times a second, and an ordinary text request four times a second. In the
middle of it all the server is told to stop.

With `--head` the model is a Llama with a classification head, which classifies, and reranks by its chat template;
without, it is a Qwen3, which has every other task.

Prints how many requests were answered and how, and all three figures. Exits with 1 if `/health` took more than 250 ms
at the 99th percentile, a text request more than two seconds, or the end more than `--shutdown-timeout` and two seconds,
each times `--slack`.
"""

import argparse
import asyncio
import contextlib
import itertools
import multiprocessing
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.synchronize import Event
from pathlib import Path

import httpx
import numpy as np
from worst_requests import worst_requests

from mis_testing.checkpoint import tiny_checkpoint
from mis_testing.server import running_server

HEALTH_S, TEXT_S, STOP_S = 0.25, 2.0, 2.0
_SHUTDOWN_S = 5
_SMALL_STEPS = ("--chunked-prefill-size", "256", "--max-total-tokens", "8192")
_ANSWERED = "http_requests_total"
_ORDINARY = {
    "query": "Does the document answer the question of how long a text may be? " * 4,
    "items": [f"Document {number}: it says that {number} words are enough for anybody." for number in range(10)],
    "labels": ["no", "yes"],
    "apply_softmax": True,
}


def attack(url: str, clients: int, small: bool, head: bool, began: Event) -> None:
    """Send the worst requests until this process is ended; say when it began."""
    asyncio.run(_attack(url, clients, worst_requests(small, head), began))


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
    """Ask at set times, whether or not earlier ones are answered; return the seconds from each time to its answer."""

    def answered(due: float) -> float:
        status = ask().status_code
        assert status == 200, status
        return time.monotonic() - due

    with ThreadPoolExecutor(max_workers=64) as threads:
        due = time.monotonic()
        asked = []
        while not ends.wait(max(0.0, due - time.monotonic())):
            asked.append(threads.submit(answered, due))
            due += period_s
        return [each.result() for each in asked]


@contextlib.contextmanager
def attacked(url: str, clients: int, small: bool, head: bool) -> Iterator[None]:
    """Surround what is measured by the attack."""
    context = multiprocessing.get_context("spawn")
    began = context.Event()
    process = context.Process(target=attack, args=(url, clients, small, head, began), daemon=True)
    process.start()
    try:
        began.wait()
        yield
    finally:
        process.kill()
        process.join()


def checkpoint(folder: Path, head: bool) -> str:
    """Write a small random model, with a classification head or with a vocabulary."""
    if head:
        return str(tiny_checkpoint(folder, "llama", max_position_embeddings=4096, head_labels=("no", "yes")))
    return str(tiny_checkpoint(folder, max_position_embeddings=4096))


def main() -> None:
    """Measure, print and judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="checkpoint; default: a small random one")
    parser.add_argument("--head", action="store_true", help="a model with a classification head, and what it is asked")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--slack", type=float, default=1, help="how many times the bounds are allowed")
    parser.add_argument("--small", action="store_true", help="an eighth of the length of texts; short steps")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        model = chosen.model or checkpoint(Path(folder, "model"), chosen.head)
        steps = _SMALL_STEPS if chosen.small else ()
        flags = ("--shutdown-timeout", str(_SHUTDOWN_S), "--disable-access-log", *steps)
        server = stack.enter_context(running_server(model, *flags, stop_timeout_s=120))
        http = stack.enter_context(httpx.Client(base_url=server.base_url, trust_env=False, timeout=600))
        http.post("/v1/score", json=_ORDINARY).raise_for_status()
        ends, taken = threading.Event(), {"health": [], "text": []}

        def ask(name: str, call: Callable[[], httpx.Response], period_s: float) -> threading.Thread:
            thread = threading.Thread(target=lambda: taken[name].extend(probe(call, period_s, ends)))
            thread.start()
            return thread

        with attacked(server.base_url, chosen.clients, chosen.small, chosen.head):
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
