"""What HTTP costs: requests per second against the engine in process, and CPU time of the front process.

    python packages/mis-server/benchmarks/http_cost.py [--model FOLDER] [--clients 1 8 64] [--items 500 10]
                                                       [--query 2000] [--cached] [--requests 64] [--rounds 3]
    python packages/mis-server/benchmarks/http_cost.py --engine-sleep 0 [--clients ...] ...

Without a model, a checkpoint so tiny that the server is measured and not the model. `--engine-sleep` goes further: the
engine computes nothing and sleeps so many milliseconds, and only HTTP is measured. Every request has items of
20 tokens and, unless `--cached`, a new query, as token ids. HTTP and in-process rounds take turns, so that both see
the same machine; the medians of the rounds are compared. The clients are on the same machine and take
their share of it.
"""

import argparse
import asyncio
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import instant_engine
import numpy as np

from mis_core import Engine
from mis_testing.checkpoint import tiny_checkpoint
from mis_testing.server import RunningServer, free_port, running_command, running_server

LENGTH = 20
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def make_requests(
    count: int, query: int, items: int, vocab_size: int, rng: np.random.Generator, is_cached: bool = False
) -> list[dict[str, Any]]:
    """Return requests with one new query each, or all with the same one if `is_cached`."""
    queries = [rng.integers(0, vocab_size, query).tolist() for _ in range(1 if is_cached else count)]
    return [
        {
            "query": queries[number % len(queries)],
            "items": rng.integers(0, vocab_size, (items, LENGTH)).tolist(),
            "label_token_ids": [1, 2],
        }
        for number in range(count)
    ]


def cpu_s(pid: int) -> float:
    """Return the CPU time that a process has used, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


async def over_http(server: RunningServer, bodies: list[bytes], clients: int) -> None:
    """Send all bodies over kept connections, each client waiting for its answer."""
    host, port = server.base_url.removeprefix("http://").split(":")
    waiting = iter(bodies)

    async def client() -> None:
        reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 20)
        for body in waiting:
            writer.write(b"POST /v1/score HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n")
            writer.write(b"content-length: %d\r\n\r\n" % len(body) + body)
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200"), head
            length = next(line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
            await reader.readexactly(int(length.partition(b":")[2]))
        writer.close()

    await asyncio.gather(*(client() for _ in range(clients)))


def in_process(engine: Engine, requests: list[dict[str, Any]], callers: int) -> None:
    """Score all requests on an engine in this process, from threads that each wait for their answer."""
    with ThreadPoolExecutor(callers) as pool:
        list(pool.map(lambda request: engine.score(**request), requests))


def front_cost(server: RunningServer, bodies: list[bytes], clients: int) -> tuple[float, float]:
    """Send all bodies; return the CPU time of the front process for each in milliseconds, and the seconds for all."""
    used, began = cpu_s(server.process.pid), time.perf_counter()
    asyncio.run(over_http(server, bodies, clients))
    seconds = time.perf_counter() - began
    return (cpu_s(server.process.pid) - used) / len(bodies) * 1e3, seconds


def compare_with_engine(model: str, options: argparse.Namespace) -> None:
    """Print rates over HTTP and in process, and the CPU time of the front."""
    rng = np.random.default_rng(0)
    with running_server(model, ready_timeout_s=600) as server, Engine.from_pretrained(model) as engine:
        sys.stdout.write("items clients  HTTP/s  in process/s  share  front CPU ms/request\n")
        for items, clients in itertools.product(options.items, options.clients):
            http_s, engine_s, cpu = [], [], []
            for _ in range(options.rounds):
                requests = make_requests(options.requests, options.query, items, engine.vocab_size, rng, options.cached)
                bodies = [json.dumps(request).encode() for request in requests]
                cpu_ms, seconds = front_cost(server, bodies, clients)
                cpu.append(cpu_ms)
                http_s.append(seconds)
                began = time.perf_counter()
                in_process(engine, requests, clients)
                engine_s.append(time.perf_counter() - began)
            rates = [options.requests / statistics.median(each) for each in (http_s, engine_s)]
            share = statistics.median(b / a for a, b in zip(http_s, engine_s, strict=True))
            sys.stdout.write(
                f"{items:5} {clients:7} {rates[0]:7.2f} {rates[1]:13.2f} {share:6.2f} {statistics.median(cpu):12.2f}\n"
            )
            sys.stdout.flush()


def measure_server_alone(model: str, options: argparse.Namespace) -> None:
    """Print the CPU time of the front, with an engine that computes nothing."""
    rng = np.random.default_rng(0)
    url = f"http://127.0.0.1:{(port := free_port())}"
    command = [sys.executable, instant_engine.__file__, "serve", model, "--port", str(port)]
    with running_command(command, url, env={instant_engine.SLEEP_MS: str(options.engine_sleep)}) as server:
        sys.stdout.write("items clients  front CPU ms/request\n")
        for items, clients in itertools.product(options.items, options.clients):
            cpu = []
            for _ in range(options.rounds + 1):  # the first warms up
                requests = make_requests(options.requests, options.query, items, 2048, rng, options.cached)
                cpu.append(front_cost(server, [json.dumps(request).encode() for request in requests], clients)[0])
            sys.stdout.write(f"{items:5} {clients:7} {statistics.median(cpu[1:]):21.2f}\n")
            sys.stdout.flush()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="folder of a checkpoint; default: a tiny one")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--items", type=int, nargs="+", default=[500, 10])
    parser.add_argument("--query", type=int, default=2000, help="tokens of a query")
    parser.add_argument("--cached", action="store_true", help="requests of a round share their query")
    parser.add_argument("--requests", type=int, default=64, help="of a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--engine-sleep", type=float, help="milliseconds that an engine without a model takes")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        sizes = {"vocab_size": 2048, "max_position_embeddings": 4096}
        model = options.model or str(tiny_checkpoint(Path(folder) / "tiny", **sizes))
        (compare_with_engine if options.engine_sleep is None else measure_server_alone)(model, options)


if __name__ == "__main__":
    main()
