"""One side of a comparison: a program that loads an engine and answers what it is asked.

It is run as a file, with `PYTHONPATH` naming the sources to measure, and imports only those and NumPy, so that this
one program measures any version. The first line of standard input is its job, `{"model": FOLDER, "options": {...}}`.
Once the engine is ready it writes one line of JSON that says what it is; then it answers every line, `{"score":
REQUEST}`, `{"forget": true}` or `{"counts": true}`, with one line. It ends with its input.
"""

import importlib
import json
import os
import sys
import time
from typing import Any, TextIO


def main() -> None:
    """Load, say so, and answer until the input ends."""
    job = json.loads(sys.stdin.readline())
    answers = _only_for_answers()
    from mis_core import Engine

    engine = Engine.from_pretrained(job["model"], progress=False, **job["options"])
    _write(answers, _about(engine))
    for line in sys.stdin:
        asked = json.loads(line)
        if "score" in asked:
            _write(answers, _scored(engine, asked["score"]))
        elif "counts" in asked:
            _write(answers, engine.statistics())
        else:
            engine.flush_cache()
            _write(answers, {})
    engine.close()


def _scored(engine: Any, request: dict[str, Any]) -> dict[str, Any]:
    """Score; return when, by the clock that all processes share, and the CPU time of all threads meanwhile."""
    sent_s, began_cpu = time.perf_counter(), time.process_time()
    result = engine.score(**request)
    cpu_s, done_s = time.process_time() - began_cpu, time.perf_counter()
    return {
        "sent_s": sent_s,
        "done_s": done_s,
        "cpu_ms": cpu_s * 1e3,
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
        "native": _is_native(),
    }


def _is_native() -> bool:
    """Whether the native CPU library is in use, in whichever way this version can be asked."""
    try:
        from mis_kernels import backends
    except ImportError:  # versions before backends
        try:
            return importlib.import_module("mis_kernels.native").is_loaded()
        except ImportError:  # versions before the native library
            return False
    return backends.choose(backends.ANY_HEADS, "bfloat16").name == "native"


def _only_for_answers() -> TextIO:
    """Keep standard output for answers; what libraries print goes to standard error."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return answers


def _write(answers: TextIO, answer: dict[str, Any]) -> None:
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


if __name__ == "__main__":
    main()
