"""One side of a comparison: a program that loads an engine and scores when it is told to.

It is run as a file, with `PYTHONPATH` naming the sources to measure, and imports only those and NumPy, so that this
one program measures any version. The first line of standard input is its job, `{"model": FOLDER, "options": {...},
"requests": {NAME: REQUEST, ...}}`. Once the engine is ready it writes one line of JSON that says what it is; then it
answers every line, `{"workload": NAME, "calls": N}` or `{"yardstick": N}`, with one line, `{"wall_s": [N seconds],
"cpu_s": [N seconds]}`. It ends with its input.
"""

import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

import numpy as np

_YARDSTICK = 768  # rows and columns; a product takes some ten milliseconds


def main() -> None:
    """Load, say so, and answer until the input ends."""
    job = json.loads(sys.stdin.readline())
    answers = _only_for_answers()
    from mis_core import Engine

    engine = Engine.from_pretrained(job["model"], progress=False, **job["options"])
    _write(answers, _about(engine))
    matrix = np.full((_YARDSTICK, _YARDSTICK), 0.5, np.float32)
    for line in sys.stdin:
        asked = json.loads(line)
        if "yardstick" in asked:
            answer = _timed(lambda: matrix @ matrix, lambda: None, asked["yardstick"])
        else:
            request = job["requests"][asked["workload"]]
            answer = _timed(lambda body=request: engine.score(**body), engine.flush_cache, asked["calls"])
        _write(answers, answer)
    engine.close()


def _timed(call: Callable[[], Any], prepare: Callable[[], Any], calls: int) -> dict[str, list[float]]:
    """Time calls, and the CPU time of all threads in them; what prepares a call is not timed."""
    wall, cpu = [], []
    for _ in range(calls):
        prepare()
        began_wall, began_cpu = time.perf_counter(), time.process_time()
        call()
        cpu.append(time.process_time() - began_cpu)
        wall.append(time.perf_counter() - began_wall)
    return {"wall_s": wall, "cpu_s": cpu}


def _about(engine: Any) -> dict[str, Any]:
    """Say what was loaded, and from where."""
    import jax

    import mis_core

    return {
        "source": mis_core.__file__,
        "version": mis_core.__version__,
        "platform": jax.default_backend(),
        "device": f"{len(jax.devices())} x {jax.devices()[0].device_kind}",
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
