"""Where actors look for modules. Ray puts the directory in which a program called `ray.init` before all others."""

import os
import site
import sys
import sysconfig
from pathlib import Path

import ray


def look_there_last() -> None:
    """In an actor, look into that directory last, so that no file of it is taken for an installed package.

    Modules of a pipeline that stand there are still found.
    """
    if ray.is_initialized() and ray.get_runtime_context().get_actor_id() is not None:
        # Not `sort`, which empties the list meanwhile: what asks may import.
        sys.path[:] = sorted(sys.path, key=lambda path: not _is_installed(path))


def _is_installed(path: str) -> bool:
    roots = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    roots += [*site.getsitepackages(), site.getusersitepackages(), str(Path(ray.__file__).parent)]
    roots += filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    return any(Path(path).is_relative_to(root) for root in roots)
