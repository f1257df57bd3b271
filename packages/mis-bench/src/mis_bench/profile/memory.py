"""What lies on the devices."""

from pathlib import Path
from typing import TYPE_CHECKING

import jax

from mis_bench.artifacts.profile import MemoryReport, Tensor
from mis_bench.targets.local import resident_bytes

if TYPE_CHECKING:
    from mis_core import Engine

_MB = 2**20


def memory_report(engine: "Engine", stage: str, pprof: Path) -> MemoryReport:
    """Describe what an engine keeps on its devices, and write JAX's own memory profile beside it.

    Waits for the devices: latencies of the same run mean nothing.

    Args:
        engine: Idle.
        stage: When this is.
        pprof: File to write, for pprof.
    """
    pprof.parent.mkdir(parents=True, exist_ok=True)
    engine.save_memory_profile(pprof)
    tensors = {
        name: Tensor(memory_mb=array.bytes / _MB, shape=list(array.shape), dtype=array.dtype)
        for name, array in engine.memory().items()
    }
    largest = max(tensors, key=lambda name: tensors[name].memory_mb)
    in_use, peak = device_memory_mb()
    return MemoryReport(
        stage=stage,
        total_memory_mb=sum(tensor.memory_mb for tensor in tensors.values()),
        largest_tensor=largest,
        largest_memory_mb=tensors[largest].memory_mb,
        tensors=tensors,
        device_memory_mb=in_use,
        peak_memory_mb=peak,
        process_memory_mb=resident_bytes() / _MB,
        pprof=f"{pprof.parent.name}/{pprof.name}",
    )


def device_memory_mb() -> tuple[float | None, float | None]:
    """Return what is in use on all devices together, and the highest since the start; None where they do not tell."""
    known = [stats for device in jax.local_devices() if (stats := device.memory_stats())]
    if not known or any("peak_bytes_in_use" not in stats for stats in known):
        return None, None
    in_use, peak = (sum(stats[name] for stats in known) for name in ("bytes_in_use", "peak_bytes_in_use"))
    return in_use / _MB, peak / _MB
