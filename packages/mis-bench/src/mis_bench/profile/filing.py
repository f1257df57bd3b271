"""What a profile is filed under: commit and branch, hardware, and what was asked."""

import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from mis_bench.artifacts.profile import Metadata, MetadataArtifacts, MetadataConfig, MetadataHardware
from mis_bench.environment import Environment
from mis_bench.profile.scenarios import Plan

_COUNTED = re.compile(r"(\d+) x (.+)")  # as the engine describes its devices


def metadata_of(plan: Plan, model: str, environment: Environment, batch_sizes: Sequence[int]) -> Metadata:
    """Return what `metadata.json` says.

    The zone is that of the environment variable `TPU_ZONE`, and the trigger that of continuous integration.
    """
    counted = _COUNTED.fullmatch(environment.hardware)
    return Metadata(
        timestamp=environment.timestamp,
        commit=environment.commit,
        branch=_branch() if environment.commit else None,
        trigger=os.environ.get("GITHUB_EVENT_NAME", "manual"),
        config=MetadataConfig(
            profile=plan.scenario, model=model, batch_sizes=list(batch_sizes), num_runs=plan.timed + plan.profiled
        ),
        hardware=MetadataHardware(
            device=counted.group(2) if counted else environment.hardware,
            device_count=int(counted.group(1)) if counted else 1,
            zone=os.environ.get("TPU_ZONE"),
        ),
        artifacts=MetadataArtifacts(
            traces="traces" if plan.profiled else None,
            memory="memory" if plan.scenario == "memory" else None,
            benchmark="profile.json",
        ),
    )


def _branch() -> str | None:
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--abbrev-ref", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
