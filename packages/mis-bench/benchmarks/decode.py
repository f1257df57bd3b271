"""Tokens written a second, by this engine and by llama.cpp: the same checkpoint in bfloat16, in turns.

    python packages/mis-bench/benchmarks/decode.py [--model random:qwen3-0.6b] [--streams 1 16] [--tokens 24]
        [--rounds 3]

Every stream has a prompt of its own, 64 tokens unless `--prompt` says otherwise; its most probable tokens are written.
The time of a step is that from one token of the first stream to its next, once all streams are written side by side;
what is printed is the median of all steps of all rounds. Beside it is the time in which as many threads read as many
bytes as the weights have: no step is faster. Needs the extra `llama-cpp`.
"""

import argparse
import os
import statistics
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from mis_bench.checkpoints import resolve_checkpoint
from mis_bench.targets.llama_cpp import LlamaCpp, gguf_file
from mis_core import Engine


def steps_of(times: list[float]) -> list[float]:
    """Return the seconds between tokens, without those of the first few."""
    return np.diff(times[2:]).tolist()


def write(engine: Engine, prompts: list[list[int]], count: int) -> list[float]:
    """Return when each token of the first stream came, from the time when all streams have begun."""
    begun, times = threading.Barrier(len(prompts)), []

    def stream(number: int) -> None:
        for place, _ in enumerate(engine.stream(prompts[number], count, temperature=0, ignore_eos=True)):
            if place == 0:
                begun.wait()
            if number == 0:
                times.append(time.perf_counter())

    with ThreadPoolExecutor(len(prompts)) as pool:
        list(pool.map(stream, range(len(prompts))))
    return times


def read_ms(size: int, threads: int) -> float:
    """Return the milliseconds in which threads read so many bytes, the best of five."""
    parts = np.array_split(np.ones(size // 8, np.int64), threads)

    def once() -> float:
        began = time.perf_counter()
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(np.max, parts))
        return (time.perf_counter() - began) * 1e3

    return min(once() for _ in range(5))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="random:qwen3-0.6b", help="checkpoint (default: random:qwen3-0.6b)")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 16], help="sequences (default: 1 16)")
    parser.add_argument("--prompt", type=int, default=64, help="tokens of a prompt (default: 64)")
    parser.add_argument("--tokens", type=int, default=24, help="tokens written by each (default: 24)")
    parser.add_argument("--rounds", type=int, default=3, help="turns (default: 3)")
    options = parser.parse_args()
    directory, threads = resolve_checkpoint(options.model), os.cpu_count() or 1
    theirs = LlamaCpp(directory, 4096, threads)
    rng = np.random.default_rng(0)
    with Engine.from_pretrained(directory, dtype="bfloat16", context_length=1024, progress=False) as engine:
        weights = gguf_file(directory).stat().st_size
        sys.stdout.write(f"weights: {weights / 1e6:.0f} MB, read in {read_ms(weights, threads):.0f} ms\n")
        for streams in options.streams:
            ours_s: list[float] = []
            theirs_s: list[float] = []
            for _ in range(options.rounds):
                prompts = rng.integers(0, engine.vocab_size, (streams, options.prompt)).tolist()
                ours_s += steps_of(write(engine, prompts, options.tokens))
                theirs_s += steps_of([time.perf_counter() for _ in theirs.generate(prompts, options.tokens)])
            ours, llama = (statistics.median(each) * 1e3 for each in (ours_s, theirs_s))
            sys.stdout.write(
                f"{streams:2} streams: {ours:.0f} ms a step, {streams / ours * 1e3:.1f} tokens/s; "
                f"llama.cpp {llama:.0f} ms, {streams / llama * 1e3:.1f} tokens/s; {llama / ours:.2f} times llama.cpp\n"
            )
            sys.stdout.flush()
    theirs.close()


if __name__ == "__main__":
    main()
