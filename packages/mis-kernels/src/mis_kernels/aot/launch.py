"""Starts workers: the compiler reads its target once per process, so each job has a process of its own."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from mis_kernels.aot.targets import TARGETS, environment


def run_job(name: str, job: dict[str, Any]) -> list[dict[str, Any]]:
    """Run a worker for one target; return its rows.

    Raises:
        RuntimeError: the compiler refused something; carries the end of its output.
    """
    target = TARGETS[name]
    with tempfile.TemporaryDirectory() as folder:
        dump = Path(folder, "dump")
        dump.mkdir()
        path = Path(folder, "job.json")
        path.write_text(json.dumps({**job, "target": name, "dump": str(dump)}))
        env = environment(target, str(dump) if job["what"] in ("kernels", "glue") else None)
        command = [sys.executable, "-m", "mis_kernels.aot.worker", str(path)]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{name}: {job['what']} failed:\n" + "\n".join(done.stderr.strip().splitlines()[-15:]))
    return json.loads(done.stdout.strip().splitlines()[-1])
