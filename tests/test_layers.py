"""The import contracts hold, cover every package, and break when somebody breaks a layer."""

import os
import shutil
import subprocess
import sys
import tomllib
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = sorted(path.name for path in (ROOT / "packages").iterdir() if (path / "pyproject.toml").is_file())


def lint_imports(root: Path) -> subprocess.CompletedProcess[str]:
    sources = os.pathsep.join(str(path) for path in sorted(root.glob("packages/*/src")))
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as run; run()", "--no-cache"]
    environment = os.environ | {"PYTHONPATH": sources}
    return subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the sources and of the contracts."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for package in PACKAGES:
        shutil.copytree(
            ROOT / "packages" / package / "src",
            tmp_path / "packages" / package / "src",
            ignore=shutil.ignore_patterns("__pycache__"),
        )
    return tmp_path


def longest_chain(graph: grimp.ImportGraph, package: str) -> list[str]:
    """Return rooms of a package, its modules and packages, each of which imports the next: as many as possible.

    Raises:
        CycleError: rooms import each other.
    """
    rooms: dict[str, set[str]] = {room: set() for room in graph.find_children(package)}
    for room, below in rooms.items():
        for module in {room, *graph.find_descendants(room)}:
            imported = graph.find_modules_directly_imported_by(module)
            below |= {other for other in rooms for each in imported if f"{each}.".startswith(f"{other}.")} - {room}
    chains: dict[str, list[str]] = {}
    for room in TopologicalSorter(rooms).static_order():
        chains[room] = [room, *max((chains[each] for each in rooms[room]), key=_length_and_names, default=[])]
    return max(chains.values(), key=_length_and_names)


def _length_and_names(chain: list[str]) -> tuple[int, list[str]]:
    return len(chain), chain  # of equally long ones always the same, in whatever order sets are walked


def plant(tree: Path, path: str, line: str) -> None:
    module = tree / "packages" / path
    module.write_text(f"{module.read_text() if module.exists() else ''}\n{line}\n")


def test_contracts_hold() -> None:
    result = lint_imports(ROOT)
    assert result.returncode == 0, result.stdout + result.stderr


def test_every_package_is_under_contract() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    assert sorted(contracts["root_packages"]) == [package.replace("-", "_") for package in PACKAGES]


def test_rooms_of_the_core_lie_in_seven_floors_at_most() -> None:
    graph = grimp.build_graph("mis_core", cache_dir=None)
    chain = longest_chain(graph, "mis_core")
    assert len(chain) <= 7, " imports ".join(chain)
    for above, below in (("errors", "deep"), ("deep", "deeper")):
        graph.add_import(importer=f"mis_core.{above}", imported=f"mis_core.{below}")
    assert longest_chain(graph, "mis_core") == [*chain, "mis_core.deep", "mis_core.deeper"]
    graph.add_import(importer="mis_core.deeper", imported="mis_core.deep")
    with pytest.raises(CycleError):
        longest_chain(graph, "mis_core")


@pytest.mark.parametrize(
    ("path", "line", "contract"),
    [
        ("mis-core/src/mis_core/tasks/score/task.py", "import jax", "The host half of mis_core knows no JAX"),
        (
            "mis-core/src/mis_core/process/client.py",
            "from mis_kernels import lay_out",
            "The host half of mis_core knows no JAX",
        ),
        ("mis-core/src/mis_core/scheduler/plan.py", "import mis_core.tasks.fields.labels", "Steps are planned and run"),
        ("mis-core/src/mis_core/__init__.py", "import jax", "`import mis_core` itself loads nothing heavy"),
        ("mis-core/src/mis_core/engine/engine.py", "import fastapi", "Only mis_server knows HTTP"),
        ("mis-kernels/src/mis_kernels/segments.py", "import mis_core.config", "Packages only import those below them"),
        ("mis-core/src/mis_core/engine/engine.py", "import mis_testing", "Production code imports neither mis_testing"),
        ("mis-server/src/mis_server/app.py", "from mis_core.engine import Engine", "The front process knows neither"),
        ("mis-server/src/mis_server/app.py", "import jax.numpy", "The front process knows neither"),
        ("mis-testing/src/mis_testing/oracle.py", "import mis_kernels", "An oracle does not import its subject"),
        ("mis-core/src/mis_core/errors.py", "import mis_core.process.wire", "Rooms of mis_core only"),
        ("mis-core/src/mis_core/newcomer.py", "", "Rooms of mis_core only"),
        ("mis-core/src/mis_core/tasks/newcomer.py", "", "Rooms of mis_core.tasks"),
        ("mis-core/src/mis_core/tasks/limits.py", "import mis_core.tasks.text.chat", "Rooms of mis_core.tasks"),
        ("mis-kernels/src/mis_kernels/newcomer.py", "", "Rooms of mis_kernels"),
        ("mis-kernels/src/mis_kernels/segments.py", "import mis_kernels.backends", "Rooms of mis_kernels"),
        (
            "mis-kernels/src/mis_kernels/heads.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import mis_kernels.backends",
            "Rooms of mis_kernels",
        ),
        (
            "mis-kernels/src/mis_kernels/backends/native/backend.py",
            "import mis_kernels.backends.tpu.tiles",
            "Backends do not know each other",
        ),
        ("mis-testing/src/mis_testing/newcomer.py", "", "Rooms of mis_testing"),
        ("mis-server/src/mis_server/newcomer.py", "", "Rooms of mis_server"),
        ("mis-bench/src/mis_bench/newcomer.py", "", "Rooms of mis_bench"),
    ],
)
def test_a_broken_layer_is_found(tree: Path, path: str, line: str, contract: str) -> None:
    plant(tree, path, line)
    result = lint_imports(tree)
    assert result.returncode != 0
    broken = [row for row in result.stdout.splitlines() if " BROKEN" in row]
    assert any(contract in row for row in broken), result.stdout + result.stderr
