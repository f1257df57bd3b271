"""One side of a comparison: a program that loads an engine and answers what it is asked.

It is run as a file, with `PYTHONPATH` naming the sources to measure, and imports only those, so that this one program
measures any version. Every line of standard input is answered with a line of JSON. The first is its job, `{"model":
FOLDER, "options": {...}}`; the answer, once the engine is ready, says what it is. The others are `{"score": REQUEST}`,
`{"forget": true}` or `{"counts": true}`. It ends with its input.
"""

import json
import os
import sys
import time
from typing import Any


def main() -> None:
    """Load, say so, and answer until the input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print goes to standard error
    job = json.loads(sys.stdin.readline())
    from mis_core import Engine

    engine = Engine.from_pretrained(job["model"], progress=False, **job["options"])
    answer = _about(engine)
    while True:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
        line = sys.stdin.readline()
        if not line:
            break
        answer = _answer(engine, json.loads(line))
    engine.close()


def _answer(engine: Any, asked: dict[str, Any]) -> dict[str, Any]:
    """Answer; with scores go the milliseconds that they took, by the clock and of all threads on the CPU."""
    if "counts" in asked:
        return engine.statistics()
    if "forget" in asked:
        engine.flush_cache()
        return {}
    began, began_cpu = time.perf_counter(), time.process_time()
    result = engine.score(**asked["score"])
    cpu, wall = time.process_time() - began_cpu, time.perf_counter() - began
    return {
        "stages_ms": {"engine": wall * 1e3, "cpu": cpu * 1e3},
        "scores": result.scores.tolist(),
        "cached_tokens": result.usage.cached_tokens,
    }


def _about(engine: Any) -> dict[str, Any]:
    """Say what was loaded, and from where."""
    import jax

    import mis_core

    return {
        "source": mis_core.__file__,
        "version": mis_core.__version__,
        "devices": f"{len(jax.devices())} x {jax.devices()[0].device_kind}",
        "dtype": engine.config.dtype,
    }


if __name__ == "__main__":
    main()
