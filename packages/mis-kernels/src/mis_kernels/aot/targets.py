"""TPUs to compile for. The compiler reads its target once, when it is loaded, so each job has a process of its own."""

import os
from typing import NamedTuple

import jax
from jax.sharding import Mesh

# What the engine's steps have (`mis_core.scheduler.plan`), which is above this package; a test holds them equal.
PAGE_SIZE = 64
"""Tokens of a page of the caches that code is compiled for."""

LONGEST_ITEM = 1024
"""Longest item, in tokens, that keeps its keys and values among the new tokens of its step."""

SLOTS = 64
"""Most rows of a step of single tokens."""


class Topology(NamedTuple):
    """One compile-only topology.

    Attributes:
        chip: Chip name of the block-size tables.
        topology: The compiler's name of the topology.
        accelerator: The accelerator type it belongs to.
        clock_ghz: Clock of the vector and matrix units, inferred from the published peak rates
            (v6e: 918 TFLOP/s is two 256x256 units at 1.75 GHz taking two rows a cycle; v7x: 1,155 the same at 2.2).
    """

    chip: str
    topology: str
    accelerator: str
    clock_ghz: float


TARGETS: dict[str, Topology] = {
    "v5e": Topology("v5e", "v5e:1x1", "v5litepod-1", 1.5),
    "v5e:2x4": Topology("v5e", "v5e:2x4", "v5litepod-8", 1.5),
    "v6e:1x1": Topology("v6e", "v6e:1x1", "v6e-1", 1.75),
    "v6e:2x2": Topology("v6e", "v6e:2x2", "v6e-4", 1.75),
    "v6e:2x4": Topology("v6e", "v6e:2x4", "v6e-8", 1.75),
    "v7x": Topology("v7x", "tpu7x:1x1x1", "tpu7x-2", 2.2),
    "v7x:2x2x1": Topology("v7x", "tpu7x:2x2x1", "tpu7x-8", 2.2),
}
SINGLE_CHIP = ("v5e", "v6e:1x1", "v7x")


def environment(target: Topology, dump_to: str | None) -> dict[str, str]:
    """Return the environment of a process that compiles for `target`, with schedules dumped to a folder if named."""
    dump = f" --xla_jf_dump_to={dump_to} --xla_jf_dump_llo_text=true" if dump_to else ""
    return {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_ACCELERATOR_TYPE": target.accelerator,
        "TPU_WORKER_HOSTNAMES": "localhost",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        "LIBTPU_INIT_ARGS": os.environ.get("LIBTPU_INIT_ARGS", "") + dump,
    }


def mesh(target: Topology, devices: int | None = None) -> Mesh:
    """Return a mesh over the first `devices` compile-only devices, with one axis `tensor`."""
    from jax.experimental import topologies  # loads the compiler

    single = {"chips_per_host_bounds": (1, 1, 1)} if "1x1" in target.topology else {}
    found = topologies.get_topology_desc(target.topology, platform="tpu", **single).devices
    return jax.make_mesh(
        (devices or len(found),),
        ("tensor",),
        devices=found[:devices],
        axis_types=(jax.sharding.AxisType.Auto,),
    )
