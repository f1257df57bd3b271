"""Compiles programs before their first call, some while the next are traced."""

import os
import time
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed

from jax.stages import Lowered
from tqdm import tqdm

_AT_A_TIME = 4  # a compiler may take gigabytes


def compile_all(programs: Iterable[tuple[str, Lowered]], *, progress: bool) -> dict[str, float]:
    """Compile programs, several at a time; a later call of the jitted functions finds them.

    Args:
        programs: Names, of which several programs may have the same, and programs, traced as they are asked for.
        progress: Show a progress bar on standard error.

    Returns:
        Seconds by name, of the compiler alone; some of them passed at the same time.
    """
    seconds: dict[str, float] = defaultdict(float)

    def compiled(name: str, program: Lowered) -> tuple[str, float]:
        began = time.perf_counter()
        program.compile()
        return name, time.perf_counter() - began

    with ThreadPoolExecutor(min(os.cpu_count() or 1, _AT_A_TIME), "compile") as pool:
        running = [pool.submit(compiled, *each) for each in programs]
        for each in tqdm(as_completed(running), "Compiling", len(running), unit="program", disable=not progress):
            name, taken = each.result()
            seconds[name] += taken
    return {name: round(taken, 3) for name, taken in seconds.items()}
