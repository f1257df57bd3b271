"""What attackers do to everybody else.

    python packages/mis-server/benchmarks/stall.py [--model FOLDER] [--head] [--attacks texts,costs] [--seconds 60]
        [--before 0] [--after 0] [--clients 16] [--slack 1] [--small]
    python packages/mis-server/benchmarks/stall.py --callers [500] [--items 20000] [--model FOLDER] [--slack 1]

Attackers in processes of their own, one for each entry of `attacks.py`, do their worst over and over: texts up to the
limits, texts that cost most for each byte, messages that make the template compute without end, requests for thousands
of answers, bodies without an end, bodies that expand without an end, broken framing. They yield the processors to the
server, as attackers elsewhere do.

Beside them `/health` is asked twenty times a second, and well-behaved callers send small requests of score, rerank and
chat, four a second together, whose answers are compared with those before the attack. In the middle of it all the
server is told to stop; with `--after`, the attackers leave first, and memory is compared with what it was after
`--before` seconds of ordinary load.

The soak is `--seconds 600 --before 60 --after 60`. With `--head` the model is a Llama with a classification head, which
classifies, and reranks by its chat template; without, it is a Qwen3, which has every other task.

Prints how many requests were answered and how, and all figures. Exits with 1 if `/health` took more than 250 ms
at the 99th percentile, a small request more than two seconds, the end more than `--shutdown-timeout` and two seconds, a
process more than 64 MiB more memory than before, each times `--slack`; if an answer was wrong, or a process is left.

With `--callers` nobody attacks: one large request and 500 callers of one item are asked for without and beside each
other (`large_beside_small.py`). Exits with 1 if the small ones took more than twice as long beside it, and a step more,
at the median or the 99th percentile; or the large one more than four times as long beside callers that never stop.
"""

import argparse
import asyncio
import contextlib
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import large_beside_small
import numpy as np
from attacks import ATTACKS, OF_GENERATION, TRAPPED_TEMPLATE, attack

from mis_testing.checkpoint import tiny_checkpoint
from mis_testing.server import RunningServer, running_server

HEALTH_S, SMALL_S, STOP_S, MORE_MIB = 0.25, 2.0, 2.0, 64
_SHUTDOWN_S = 5
_SMALL_STEPS = ("--chunked-prefill-size", "256", "--max-total-tokens", "8192")
_ANSWERED = "http_requests_total"
_QUERY = "Does the document answer the question of how long a text may be? " * 4
_DOCUMENTS = [f"Document {number}: it says that {number} words are enough for anybody." for number in range(10)]
_SCORE = {"query": _QUERY, "items": _DOCUMENTS, "labels": ["no", "yes"], "apply_softmax": True}
_RERANK = {"query": "Who may have how many words?", "documents": _DOCUMENTS}
_CHAT = {"messages": [{"role": "user", "content": _QUERY}], "max_tokens": 4, "temperature": 0}


class Callers:
    """Well-behaved callers: they send small requests at set times, whether or not earlier ones are answered.

    Attributes:
        taken: Seconds that each answer took after it was due, by the name of what was asked.
        wrong: What was answered otherwise than before the attack.
    """

    def __init__(self, http: httpx.Client, head: bool) -> None:
        """Ask everything once, for the right answers."""
        self.taken: dict[str, list[float]] = defaultdict(list)
        self.wrong: list[str] = []
        self._http = http
        last = ("classify", "/v1/classify", {"input": _DOCUMENTS}) if head else ("chat", "/v1/chat/completions", _CHAT)
        self._asked = [("score", "/v1/score", _SCORE), ("rerank", "/v1/rerank", _RERANK), last]
        self._right = {name: self._ask(path, body) for name, path, body in self._asked}

    @contextlib.contextmanager
    def asking(self) -> Iterator[None]:
        """Surround the time in which they ask; all have their answers when it ends."""
        ends = threading.Event()
        jobs = [("health", 0.05, lambda: self._http.get("/health").raise_for_status())]
        jobs += [(name, 0.75, self._check(name, path, body)) for name, path, body in self._asked]
        with ThreadPoolExecutor(max_workers=len(jobs)) as threads:
            asking = [threads.submit(self._at_set_times, *job, ends) for job in jobs]
            try:
                yield
            finally:
                ends.set()
        for each in asking:
            each.result()

    def _ask(self, path: str, body: dict[str, Any]) -> Any:
        reply = self._http.post(path, json=body).raise_for_status().json()
        for name in ("id", "created", "usage", "meta"):  # these count what the cache had
            reply.pop(name, None)
        return reply

    def _check(self, name: str, path: str, body: dict[str, Any]) -> Callable[[], object]:
        def check() -> None:
            if self._ask(path, body) != self._right[name]:
                self.wrong.append(f"{name} is answered otherwise than before")

        return check

    def _at_set_times(self, name: str, period_s: float, ask: Callable[[], object], ends: threading.Event) -> None:
        def answered(due: float) -> None:
            try:
                ask()
            except httpx.HTTPError as error:
                self.wrong.append(f"{name}: {error}")
            self.taken[name].append(time.monotonic() - due)

        with ThreadPoolExecutor(max_workers=64) as threads:
            due = time.monotonic()
            while not ends.wait(max(0.0, due - time.monotonic())):
                threads.submit(answered, due)
                due += period_s


@contextlib.contextmanager
def attacked(names: list[str], wrong: list[str], **victim: Any) -> Iterator[None]:
    """Surround what is measured by attacks; all have begun when it begins."""
    context = multiprocessing.get_context("spawn")
    began, queue = [context.Event() for _ in names], context.Queue()
    processes = [
        context.Process(target=attack, args=(name, victim, event, queue), daemon=True)
        for name, event in zip(names, began, strict=True)
    ]
    for process in processes:
        process.start()
    try:
        for process, event in zip(processes, began, strict=True):
            while not event.wait(1):
                if not process.is_alive():
                    raise RuntimeError("an attack has ended")
        yield
    finally:
        for process in processes:
            if not process.is_alive():
                wrong.append(f"an attack ended with {process.exitcode}")
            process.kill()
            process.join()
        while not queue.empty():
            wrong.append(queue.get())


def resident_mib(server: RunningServer) -> dict[str, list[float]]:
    """Return the memory of the server's processes, by what they are, the largest first."""
    pids = {server.process.pid: "front", **server.children}
    found: dict[str, list[float]] = defaultdict(list)
    for pid, command in pids.items():
        kind = "engine" if "process.main" in command else "tokenizer" if "tokenizers.process" in command else "front"
        with contextlib.suppress(OSError):  # it has just been replaced
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            found[kind].append(pages * os.sysconf("SC_PAGE_SIZE") / 2**20)
    return {kind: sorted(sizes, reverse=True) for kind, sizes in found.items()}


def left(pids: list[int]) -> list[int]:
    """Return which of these processes are still there, some seconds later at most."""
    end = time.monotonic() + 10
    while time.monotonic() < end and any(Path(f"/proc/{pid}").exists() for pid in pids):
        time.sleep(0.1)
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def checkpoint(folder: Path, head: bool) -> str:
    """Write a small random model, with a classification head or with a vocabulary."""
    if head:
        return str(tiny_checkpoint(folder, "llama", max_position_embeddings=4096, head_labels=("no", "yes")))
    return str(tiny_checkpoint(folder, max_position_embeddings=4096))


def measure(server: RunningServer, chosen: argparse.Namespace, model: str) -> list[str]:
    """Attack the server, stop it, print the figures; return what was beyond its bounds."""
    write, slack, bad = sys.stdout.write, chosen.slack, []
    http = httpx.Client(base_url=server.base_url, trust_env=False, timeout=600)
    callers = Callers(http, chosen.head)
    with callers.asking():
        time.sleep(chosen.before)
    before = resident_mib(server)
    callers.taken.clear()
    victim = {"url": server.base_url, "model": model, "small": chosen.small, "head": chosen.head}
    with attacked(chosen.attacks, callers.wrong, clients=chosen.clients, **victim):
        with callers.asking():
            time.sleep(chosen.seconds)
        if not chosen.after:
            stopped_s, pids = stop(server, http)
    if chosen.after:
        time.sleep(chosen.after)
        after = resident_mib(server)
        for kind, sizes in after.items():
            write(f"{kind:10}{sizes[0]:7.0f} MiB, before the attack {before[kind][0]:.0f} MiB\n")
            if sizes[0] > before[kind][0] + MORE_MIB * slack:
                bad.append(f"memory of {kind}")
        stopped_s, pids = stop(server, http)
    for name, seconds in callers.taken.items():
        values = np.array(seconds)
        p99, longest = float(np.percentile(values, 99)), float(values.max())
        write(f"{name:10}{len(values):6} answers, median {np.median(values) * 1e3:.0f} ms, p99 {p99 * 1e3:.0f} ms, ")
        write(f"longest {longest * 1e3:.0f} ms\n")
        if (p99 > HEALTH_S * slack) if name == "health" else (longest > SMALL_S * slack):
            bad.append(name)
    errors = server.stderr.count("Traceback")
    write(f"{len(pids)} processes beside the server's own, {len(left(pids))} of them left at the end\n")
    write(f"stopped after {stopped_s:.1f} s, of which {_SHUTDOWN_S} s were granted; {errors} tracebacks in the log\n")
    bad += sorted(set(callers.wrong))
    if stopped_s > _SHUTDOWN_S + STOP_S * slack:
        bad.append("the end")
    return bad + ["tracebacks"] * bool(errors) + ["processes that are left"] * bool(left(pids))


def stop(server: RunningServer, http: httpx.Client) -> tuple[float, list[int]]:
    """Print what the server counted and tell it to stop; return the seconds it took, and the processes it had."""
    for line in http.get("/metrics").text.splitlines():
        if line.startswith(_ANSWERED):
            sys.stdout.write(line.removeprefix(_ANSWERED) + "\n")
    pids, began = list(server.children), time.monotonic()
    server.process.send_signal(signal.SIGTERM)
    server.process.wait(600)
    return time.monotonic() - began, pids


def main() -> None:
    """Measure, print and judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="checkpoint; default: a small random one")
    parser.add_argument("--head", action="store_true", help="a model with a classification head, and what it is asked")
    parser.add_argument("--attacks", type=lambda text: text.split(","), help=f"default: all of {', '.join(ATTACKS)}")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--before", type=float, default=0, help="seconds of ordinary load before the attack")
    parser.add_argument("--after", type=float, default=0, help="seconds between the last attacker and the end")
    parser.add_argument("--clients", type=int, default=16, help="of each attack")
    parser.add_argument("--slack", type=float, default=1, help="how many times the bounds are allowed")
    parser.add_argument("--small", action="store_true", help="shorter texts; short steps")
    parser.add_argument("--callers", type=int, nargs="?", const=500, help="instead of attacks: of one item, at once")
    parser.add_argument("--items", type=int, default=20_000, help="of the large request beside --callers")
    chosen = parser.parse_args()
    bad = many_callers(chosen) if chosen.callers else attackers(chosen)
    if bad:
        sys.exit("Beyond the bounds: " + "; ".join(bad))


def many_callers(chosen: argparse.Namespace) -> list[str]:
    """Start a server for a large request and many callers; return what was beyond its bounds."""
    with tempfile.TemporaryDirectory() as folder:
        model = chosen.model or large_beside_small.checkpoint(Path(folder, "model"))
        with running_server(model, "--request-timeout", "3600", "--disable-access-log") as server:
            return asyncio.run(large_beside_small.measure(server, chosen.callers, chosen.items, chosen.slack))


def attackers(chosen: argparse.Namespace) -> list[str]:
    """Start a server, attack it and stop it; return what was beyond its bounds."""
    chosen.attacks = chosen.attacks or [name for name in ATTACKS if not chosen.head or name not in OF_GENERATION]
    with tempfile.TemporaryDirectory() as folder:
        model = chosen.model or checkpoint(Path(folder, "model"), chosen.head)
        steps = _SMALL_STEPS if chosen.small else ()
        flags = ["--shutdown-timeout", str(_SHUTDOWN_S), "--disable-access-log", *steps]
        if not chosen.head:
            template = Path(folder, "template.jinja")
            template.write_text(TRAPPED_TEMPLATE)
            flags += ["--chat-template", str(template)]
        with running_server(model, *flags, stop_timeout_s=120) as server:
            return measure(server, chosen, model)


if __name__ == "__main__":
    main()
