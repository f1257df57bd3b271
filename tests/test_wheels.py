"""What is in the wheels of dist/. That each installs alone is `nox -s wheels_alone`."""

import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ["mis-bench", "mis-core", "mis-kernels", "mis-server", "mis-testing"]
SCRIPTS = {"mis-server": "mis-server = mis_server.__main__:main", "mis-bench": "mis-bench = mis_bench.cli:run"}


@pytest.fixture(params=PACKAGES)
def package(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def wheel(package: str) -> zipfile.ZipFile:
    found = list((ROOT / "dist").glob(f"{package.replace('-', '_')}-*.whl"))
    if not found:
        pytest.skip("no wheels here: run `nox -s build`")
    assert len(found) == 1
    return zipfile.ZipFile(found[0])


def metadata_of(wheel: zipfile.ZipFile) -> Message:
    (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    return Parser().parsestr(wheel.read(name).decode())


def test_a_wheel_holds_only_its_package_type_marker_and_licence(wheel: zipfile.ZipFile, package: str) -> None:
    module = package.replace("-", "_")
    names = wheel.namelist()
    assert f"{module}/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert {name.split("/")[0].split("-")[0] for name in names} == {module}
    assert not [name for name in names if "test_" in name or name.endswith(".pyc")]


def test_a_wheel_holds_every_file_of_its_source(wheel: zipfile.ZipFile, package: str) -> None:
    source = ROOT / "packages" / package / "src"
    files = {str(path.relative_to(source)) for path in source.rglob("*") if path.is_file()}
    assert {name for name in files if "__pycache__" not in name} <= set(wheel.namelist())


def test_commands_are_installed(wheel: zipfile.ZipFile, package: str) -> None:
    entry_points = [wheel.read(name).decode() for name in wheel.namelist() if name.endswith("entry_points.txt")]
    assert (package in SCRIPTS) == any("console_scripts" in text for text in entry_points)
    if package in SCRIPTS:
        assert SCRIPTS[package] in entry_points[0]


def test_pytorch_is_no_requirement_at_run_time(wheel: zipfile.ZipFile) -> None:
    requirements = metadata_of(wheel).get_all("Requires-Dist") or []
    assert [text for text in requirements if text.startswith("torch") and "extra ==" not in text] == []
