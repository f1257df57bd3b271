"""Compiles for one target in a process of its own: `python -m mis_kernels.aot.worker FOLDER`.

The compiler reads its target and flags once per process, so every target and every way of dumping needs another
process. In the folder are the pickled job, later its pickled rows, and meanwhile the schedules that are dumped.
"""

import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import jax
from jax.sharding import NamedSharding, PartitionSpec

from mis_kernels.aot.programs import Program, Row
from mis_kernels.aot.schedules import read_schedule
from mis_kernels.aot.targets import TARGETS, Topology, environment, mesh

AT_ONCE = 2
"""Processes that compile side by side: each is busy on one core, and may hold some gigabytes."""

Item = TypeVar("Item")


def run_job(
    name: str, make: Callable[[Topology, Item], Program], items: Sequence[Item], *, dumps: bool = True, flags: str = ""
) -> list[Row]:
    """Compile programs for one target; return what is reported of each.

    Args:
        name: In `TARGETS`.
        make: A function of a module that makes a program.
        items: What it makes them of.
        dumps: Whether schedules are read, for which the compiler writes them.
        flags: The compiler's, beside the usual.

    Raises:
        RuntimeError: the compiler refused something; carries the end of its output.
    """
    with tempfile.TemporaryDirectory() as folder:
        dump = Path(folder, "dump")
        dump.mkdir()
        Path(folder, "job").write_bytes(pickle.dumps((name, make, list(items))))
        env = environment(TARGETS[name], str(dump) if dumps else None)
        env["LIBTPU_INIT_ARGS"] += flags
        command = [sys.executable, "-P", "-m", "mis_kernels.aot.worker", folder]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        if done.returncode:
            end = "\n".join(done.stderr.strip().splitlines()[-15:])
            raise RuntimeError(f"{name}: {make.__name__} failed:\n{end}")
        return pickle.loads(Path(folder, "rows").read_bytes())


def _row(target: Topology, program: Program, dump: Path) -> Row:
    begin = time.perf_counter()
    shardings = program.shardings or NamedSharding(mesh(target, 1), PartitionSpec())
    jitted = jax.jit(program.function, in_shardings=shardings, donate_argnums=program.donated)
    compiled: Any = jitted.lower(*program.arguments).compile()
    memory, seconds = compiled.memory_analysis(), time.perf_counter() - begin
    sizes = {"arguments": memory.argument_size_in_bytes, "temporaries": memory.temp_size_in_bytes}
    runs = read_schedule(dump, program.kernel, target.chip) if program.kernel else []
    return {"name": program.name, "seconds": seconds, **sizes, **program.report(compiled, runs)}


def main(folder: Path) -> None:
    """Run the job in a folder."""
    name, make, items = pickle.loads(Path(folder, "job").read_bytes())
    target = TARGETS[name]
    rows = [_row(target, make(target, item), Path(folder, "dump")) for item in items]
    Path(folder, "rows").write_bytes(pickle.dumps(rows))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
