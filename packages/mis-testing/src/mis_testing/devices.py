"""CPUs that pass for several devices, in processes that tests start."""

import os


def environment_with_devices(count: int) -> dict[str, str]:
    """Return this process's environment with so many CPU devices; other options of XLA, such as a limit, are kept."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={count}"
    return {**os.environ, "XLA_FLAGS": flags.strip(), "JAX_PLATFORMS": "cpu"}
