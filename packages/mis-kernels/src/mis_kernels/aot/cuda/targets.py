"""GPUs to compile for, as XLA describes them. The compiler comes with JAX's CUDA plugin and needs no driver.

It is given flags when it is loaded, so programs are compiled in a process of their own with `environment`. There is
no GPU to try configurations of products on: those that would be tried are not, and another one may be chosen where
there is one. Kernels of our own are what they will be.
"""

import os
from typing import NamedTuple

import jax


class CudaTarget(NamedTuple):
    """What the compiler is told of a GPU, in its words: rates decide what is fused, sizes what is refused.

    Attributes:
        name: As the driver calls it.
        capability: Compute capability, major and minor.
        cores: Streaming multiprocessors.
        threads_per_core: Most threads of each.
        shared_per_core: Bytes of shared memory of each.
        shared_per_block: Most bytes of it for one program.
        l2: Bytes of the second cache.
        memory: Bytes of memory.
        bandwidth: Bytes a second to and from it.
        clock_ghz: Boost clock.
    """

    name: str
    capability: tuple[int, int]
    cores: int
    threads_per_core: int
    shared_per_core: int
    shared_per_block: int
    l2: int
    memory: int
    bandwidth: int
    clock_ghz: float


# Limits of a multiprocessor: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability". The rest:
# NVIDIA's data sheets of the H100 SXM and the L4, and whitepapers of the Hopper and Ada architectures.
TARGETS: dict[str, CudaTarget] = {
    "h100": CudaTarget(
        "NVIDIA H100 80GB HBM3", (9, 0), 132, 2048, 228 * 2**10, 227 * 2**10, 50 * 2**20, 80 * 10**9, 3350 * 10**9, 1.98
    ),
    "l4": CudaTarget("NVIDIA L4", (8, 9), 58, 1536, 100 * 2**10, 99 * 2**10, 48 * 2**20, 24 * 10**9, 300 * 10**9, 2.04),
}

_CUDNN = (9, 8)  # what a user's installation has at least; no program here calls it
_RUNTIME = (12, 9)


def environment() -> dict[str, str]:
    """Return the environment of a process that compiles."""
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_gpu_autotune_level=0"
    return {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags.strip()}


def device(chip: str) -> jax.Device:
    """Return a device of a target that exists for the compiler only.

    Raises:
        RuntimeError: JAX's CUDA plugin is not installed.
    """
    from jax.experimental import topologies  # loads the compiler

    return topologies.get_topology_desc(
        chip, platform="cuda", target_config=_description(TARGETS[chip]), topology="1x1x1"
    ).devices[0]


def _description(target: CudaTarget) -> str:
    """Return a target as XLA's `GpuTargetConfigProto`, in text."""
    return f"""
gpu_device_info {{
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: {48 * 2**10}
  shared_memory_per_core: {target.shared_per_core}
  shared_memory_per_block_optin: {target.shared_per_block}
  threads_per_core_limit: {target.threads_per_core}
  core_count: {target.cores}
  fpus_per_core: 128
  block_dim_limit_x: {2**31 - 1}
  block_dim_limit_y: {2**16 - 1}
  block_dim_limit_z: {2**16 - 1}
  memory_bandwidth: {target.bandwidth}
  l2_cache_size: {target.l2}
  clock_rate_ghz: {target.clock_ghz}
  device_memory_size: {target.memory}
  cuda_compute_capability {{ major: {target.capability[0]} minor: {target.capability[1]} }}
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
}}
runtime_version {{ major: {_RUNTIME[0]} minor: {_RUNTIME[1]} }}
dnn_version_info {{ major: {_CUDNN[0]} minor: {_CUDNN[1]} }}
platform_name: "CUDA"
device_description_str: "{target.name}"
"""
