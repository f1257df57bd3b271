"""What figures depend on: the machine, the versions, the commit, the checkpoint."""

import contextlib
import datetime
import hashlib
import json
import os
import platform
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from mis_bench.commits import SourceCommit, commits_here
from mis_core.checkpoints.digests import weights_sha256

if TYPE_CHECKING:
    from mis_bench.targets.target import About

_LONGEST_HEADER = 100_000_000
"""Bytes of a header of safetensors, by its own rules."""

CPUINFO = Path("/proc/cpuinfo")
"""Where Linux describes its CPUs."""

_PACKAGES = (
    "mis-bench", "mis-core", "mis-kernels", "mis-server", "jax", "jaxlib", "libtpu", "numpy", "torch", "transformers",
)  # fmt: skip


class Environment(BaseModel):
    """Where and of what an artifact was made."""

    model_config = ConfigDict(extra="forbid")

    timestamp: AwareDatetime = Field(description="Time of the start, in UTC.")
    hardware: str = Field(min_length=1, description="Accelerator and count, or the CPU's model, cores and level.")
    platform: str = Field(min_length=1, description="Operating system and architecture.")
    python_version: str = Field(pattern=r"^\d+\.\d+\.\d+")
    cpu_count: int = Field(ge=1)
    memory_bytes: int = Field(ge=1)
    versions: dict[str, str] = Field(description="Versions of the installed packages that matter.")
    commit: str | None = Field(
        pattern=r"^[0-9a-f]{40}$", description="Commit of mis-bench, from its wheel, its checkout, or MIS_COMMIT."
    )
    is_dirty: bool | None = Field(description="Whether the working tree of a package had changes. Null: unknown.")
    branch: str | None = Field(default=None, description="Branch of the checkout, if it is on one.")
    commits: dict[str, SourceCommit] = Field(default={}, description="Commits of our packages that know theirs.")
    trigger: str = Field(default="manual", description="The event that started the run, if a CI names one.")
    variables: dict[str, str] = Field(description="Environment variables that change speed.")


def environment(hardware: str | None = None) -> Environment:
    """Describe this machine.

    Args:
        hardware: What computes, if it is not this machine's CPU.
    """
    here = commits_here()
    known = [*here.packages.values(), *([here.commit] if here.commit else [])]
    return Environment(
        timestamp=datetime.datetime.now(datetime.UTC),
        hardware=hardware or cpu_name(),
        platform=f"{platform.system()} {platform.release()} {platform.machine()}",
        python_version=platform.python_version(),
        cpu_count=os.cpu_count() or 1,
        memory_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        versions=_versions(),
        commit=here.commit.commit if here.commit else None,
        is_dirty=any(each.is_dirty for each in known) if any(each.is_dirty is not None for each in known) else None,
        branch=here.branch,
        commits=here.packages,
        trigger=os.environ.get("GITHUB_EVENT_NAME", "manual"),
        variables={
            name: value
            for name, value in sorted(os.environ.items())
            if name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS", "OMP_NUM_THREADS") or name.startswith(("JAX_", "TPU_", "MIS_"))
            if "KEY" not in name and "TOKEN" not in name
        },
    )


def hardware_of(given: str | None, about: "About | None", here: str) -> str:
    """Return what a target computes on: what the user gave, else the accelerators it tells of, else what is here."""
    return given or (about.accelerators if about else None) or here


def cpu_name() -> str:
    """Return the CPU's model, number of cores and instruction level, up to the one that `MIS_MAX_ISA` allows.

    `AMD EPYC (family 26, model 2), 2 cores, AVX512_BF16` for instance: a guest may not be told the model's name.
    """
    from mis_kernels.backends.native.library import level  # takes a second, which help and mistakes need not

    facts = _cpu_facts()
    model = facts.get("model name") or platform.processor() or platform.machine()
    if "cpu family" in facts:
        model += f" (family {facts['cpu family']}, model {facts['model']})"
    return ", ".join(filter(None, [model, f"{os.cpu_count()} cores", level()]))


def _cpu_facts() -> dict[str, str]:
    """Return what Linux says of the first CPU; nothing elsewhere."""
    with contextlib.suppress(OSError):
        first = CPUINFO.read_text().partition("\n\n")[0]
        pairs = (line.partition(":") for line in first.splitlines())
        return {name.strip(): value.strip() for name, _, value in pairs}
    return {}


def checkpoint_sha256(directory: Path) -> str:
    """Return a checksum of a checkpoint: of its `config.json`, and of its weights as `weights_sha256` reads them.

    Raises:
        OSError, ModelError: a file cannot be read.
    """
    settings = json.loads((directory / "config.json").read_text())
    return weights_sha256(settings, sorted(directory.glob("*.safetensors")))


def model_sha256(directory: Path) -> str | None:
    """Return a checksum of what speed depends on: `config.json` and the index of the weights.

    The index is `model.safetensors.index.json`, or else the headers of the files, with names, types and shapes. Weights
    themselves do not count. None of a folder without `config.json`.

    Raises:
        OSError: a file cannot be read.
    """
    settings, index = directory / "config.json", directory / "model.safetensors.index.json"
    if not settings.is_file():
        return None
    digest = hashlib.sha256(settings.read_bytes())
    if index.is_file():
        digest.update(index.read_bytes())
        return digest.hexdigest()
    for path in sorted(directory.glob("*.safetensors")):
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            digest.update(path.name.encode() + file.read(min(size, _LONGEST_HEADER)))
    return digest.hexdigest()


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found
