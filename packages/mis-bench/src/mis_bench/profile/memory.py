"""What lies on the devices."""

from pathlib import Path
from typing import TYPE_CHECKING

import jax

from mis_bench.profile.records import MemoryReport, Tensor
from mis_bench.targets.blocking import resident_bytes

if TYPE_CHECKING:
    from mis_core import Engine

_MIB = 2**20


def memory_report(engine: "Engine", when: str, pprof: Path) -> MemoryReport:
    """Describe what an engine keeps on its devices, and write JAX's own memory profile beside it.

    Waits for the devices: latencies of the same run mean nothing.

    Args:
        engine: Idle.
        when: When this is.
        pprof: File to write, for pprof.
    """
    pprof.parent.mkdir(parents=True, exist_ok=True)
    engine.save_memory_profile(pprof)
    in_use, peak = device_memory()
    return MemoryReport(
        when=when,
        tensors={
            name: Tensor(mib=array.bytes / _MIB, shape=list(array.shape), dtype=array.dtype)
            for name, array in engine.memory().items()
        },
        in_use_mib=in_use,
        peak_mib=peak,
        process_mib=resident_bytes() / _MIB,
        pprof=f"{pprof.parent.name}/{pprof.name}",
    )


def device_memory() -> tuple[float | None, float | None]:
    """Return the MiB in use on all devices, and the most since the start; None where they do not tell."""
    known = [stats for device in jax.local_devices() if (stats := device.memory_stats())]
    if not known or any("peak_bytes_in_use" not in stats for stats in known):
        return None, None
    in_use, peak = (sum(stats[name] for stats in known) for name in ("bytes_in_use", "peak_bytes_in_use"))
    return in_use / _MIB, peak / _MIB
