"""Mixed load on a real server for minutes, with or without faults: every answer is compared with a stored one.

    python packages/mis-server/benchmarks/soak.py [--model FOLDER] [--minutes 10] [--clients 8] [--faults]

Requests of 3, 30 and 500 items come at 0.4, 0.4 and 0.2, half of them with softmax, from clients that each
wait for their answer. The stored answers are those of an engine in this process, one request at a time,
before the server starts; floats are compared as such. With `--faults`: in the first third of the
time the engine process is killed and frozen in turn, and all the time clients vanish, send bodies that
are too large, too deep or wrong. Refusals (429, 503) are counted and repeated.

Prints counts, latencies by size, and the memory of both processes over time. Exits with 1 if an answer was
wrong, or a status is not one of those that the fault explains.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from mis_core import Engine
from mis_testing.checkpoint import tiny_checkpoint
from mis_testing.server import RunningServer, running_server

SIZES, SHARES, LENGTH = (3, 30, 500), (0.4, 0.4, 0.2), 20
_SAMPLE_S = 5.0
_FAULT_S = 20.0
_WRONG = ({"query": []}, {"items": "x"}, {"label_token_ids": [10**9]}, {"surprise": 1}, {"temperature": 0})


@dataclass
class Record:
    """What happened."""

    statuses: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    wrong: int = 0
    latencies_s: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    memory: list[tuple[float, str, int, float]] = field(default_factory=list)  # time, process, pid, MiB


@dataclass(frozen=True)
class Asked:
    """A request and its right answer."""

    items: int
    body: bytes
    scores: np.ndarray


def stored_answers(model: str, count: int, query: int) -> list[Asked]:
    """Make requests and score each alone."""
    rng = np.random.default_rng(0)
    made = []
    with Engine.from_pretrained(model, progress=False) as engine:
        queries = [rng.integers(0, engine.vocab_size, query).tolist() for _ in range(max(2 * count // 3, 1))]
        for size in np.repeat(SIZES, [round(share * count) for share in SHARES]):
            request: dict[str, Any] = {
                "query": queries[int(rng.integers(len(queries)))],
                "items": rng.integers(0, engine.vocab_size, (int(size), LENGTH)).tolist(),
                "label_token_ids": [1, 2],
                "apply_softmax": bool(rng.integers(2)),
            }
            engine.flush_cache()
            made.append(Asked(int(size), json.dumps(request).encode(), engine.score(**request).scores))
    return made


async def keep_asking(http: httpx.AsyncClient, pool: list[Asked], until: float, record: Record) -> None:
    """Ask one request after the other and compare the answers."""
    while time.monotonic() < until:
        asked = random.choice(pool)
        began = time.monotonic()
        try:
            reply = await http.post("/v1/score", content=asked.body, headers={"content-type": "application/json"})
        except httpx.TransportError as error:
            record.statuses[type(error).__name__] += 1
            continue
        record.statuses[str(reply.status_code)] += 1
        if reply.status_code == 200:
            record.latencies_s[asked.items].append(time.monotonic() - began)
            scores = np.array(reply.json()["scores"], np.float32)
            record.wrong += not np.array_equal(scores, asked.scores)
        else:
            await asyncio.sleep(min(float(reply.headers.get("retry-after", 1)), 1))


def engine_pid(server: RunningServer) -> int | None:
    """Return the engine's process, None while there is none."""
    try:
        return server.engine_pid
    except ValueError:
        return None


def resident_mib(pid: int) -> float:
    """Return a process's resident memory."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


async def watch_memory(server: RunningServer, until: float, record: Record) -> None:
    """Note both processes' memory every few seconds."""
    while time.monotonic() < until:
        pids = {"front": server.process.pid, "engine": engine_pid(server)}
        for name, pid in pids.items():
            if pid is not None:
                record.memory.append((time.monotonic(), name, pid, resident_mib(pid)))
        await asyncio.sleep(_SAMPLE_S)


async def vanish(server: RunningServer, pool: list[Asked], count: int) -> None:
    """Send requests and leave before the answer."""
    host, port = server.base_url.removeprefix("http://").split(":")
    writers = []
    for _ in range(count):
        _, writer = await asyncio.open_connection(host, int(port))
        body = random.choice(pool).body
        writer.write(b"POST /v1/score HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n")
        writer.write(b"content-length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()
        writers.append(writer)
    await asyncio.sleep(0.05)
    for writer in writers:
        writer.transport.abort()


async def inject_faults(
    server: RunningServer, http: httpx.AsyncClient, pool: list[Asked], began: float, until: float, record: Record
) -> None:
    """Harm the server in turns."""
    kind = {"content-type": "application/json"}
    turn = 0
    while time.monotonic() < until - _FAULT_S:
        await vanish(server, pool, 50)
        record.faults["50 clients vanished"] += 1
        for content, status in ((b" " * 100_000_000, 413), (b"[" * 10_000, 400), (b"\xff\x00", 400)):
            record.faults["bad body"] += 1
            try:
                reply = await http.post("/v1/score", content=content, headers=kind)
            except httpx.TransportError:  # it is cut off, if it goes on long after its refusal
                record.wrong += status != 413
            else:
                record.wrong += reply.status_code not in (status, 503)
        for change in _WRONG:
            reply = await http.post("/v1/score", json=json.loads(pool[0].body) | change)
            record.faults["wrong request"] += 1
            record.wrong += reply.status_code not in (400, 422, 503)
        pid = engine_pid(server)
        # The last engine lives long enough to show whether its memory grows.
        if time.monotonic() - began < (until - began) / 3 and pid is not None:
            number = (signal.SIGKILL, signal.SIGSTOP)[turn % 2]
            os.kill(pid, number)
            record.faults[f"engine {number.name}"] += 1
            turn += 1
        await asyncio.sleep(_FAULT_S)


async def run(server: RunningServer, pool: list[Asked], options: argparse.Namespace) -> Record:
    """Put the load on."""
    record, began = Record(), time.monotonic()
    until = began + options.minutes * 60
    async with httpx.AsyncClient(base_url=server.base_url, timeout=300, trust_env=False) as http:
        work = [keep_asking(http, pool, until, record) for _ in range(options.clients)]
        work.append(watch_memory(server, until, record))
        if options.faults:
            work.append(inject_faults(server, http, pool, began, until, record))
        await asyncio.gather(*work)
    return record


def report(record: Record, minutes: float) -> None:
    """Print what happened."""
    write = sys.stdout.write
    write(f"statuses {dict(record.statuses)}, wrong answers {record.wrong}, faults {dict(record.faults)}\n")
    items = sum(size * len(latencies) for size, latencies in record.latencies_s.items())
    write(f"{items / minutes / 60:.1f} items/s\n")
    for size, latencies in sorted(record.latencies_s.items()):
        p50, p95, p99 = (float(np.percentile(latencies, percent)) for percent in (50, 95, 99))
        write(f"{size:4} items: {len(latencies):6} answers, p50 {p50:7.3f} s, p95 {p95:7.3f} s, p99 {p99:7.3f} s\n")
    lives: dict[tuple[str, int], list[tuple[float, float]]] = defaultdict(list)
    for at, name, pid, mib in record.memory:
        lives[name, pid].append((at, mib))
    for (name, pid), samples in lives.items():
        # The first half minute of a process is its start; what follows must not grow.
        settled = [mib for at, mib in samples if at >= samples[0][0] + 30]
        if len(settled) >= 6:
            first, last = statistics.median(settled[:3]), statistics.median(settled[-3:])
            write(f"{name} {pid}: {first:.0f} MiB, at the end {last:.0f} MiB ({last / first - 1:+.1%}), ")
            write(f"most {max(settled):.0f} MiB, over {samples[-1][0] - samples[0][0]:.0f} s\n")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="folder of a checkpoint; default: a tiny one")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--query", type=int, default=500, help="tokens of a query")
    parser.add_argument("--requests", type=int, default=60, help="different ones")
    parser.add_argument("--faults", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        sizes = {"vocab_size": 2048, "max_position_embeddings": 4096}
        model = options.model or str(tiny_checkpoint(Path(folder) / "tiny", **sizes))
        pool = stored_answers(model, options.requests, options.query)
        flags = ("--watchdog-timeout", "10", "--disable-access-log") if options.faults else ("--disable-access-log",)
        with running_server(model, *flags, ready_timeout_s=600) as server:
            record = asyncio.run(run(server, pool, options))
            tracebacks = server.stderr.count("Traceback")
    report(record, options.minutes)
    sys.stdout.write(f"{tracebacks} tracebacks in the server's log\n")
    explained = {"200", "429", "503", "500"} if options.faults else {"200"}
    if record.wrong or tracebacks or not set(record.statuses) <= explained:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
