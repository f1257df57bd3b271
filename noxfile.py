"""What can be done here. `nox -l` prints this menu; `nox -s NAME -- ARGS` runs one entry."""

import shutil
from pathlib import Path

import nox

nox.needs_version = ">=2026.4"
nox.options.default_venv_backend = "virtualenv"
nox.options.reuse_venv = "yes"
nox.options.error_on_external_run = True
nox.options.stop_on_first_error = True
nox.options.sessions = ["lint", "types", "tests_cpu", "clients", "wheels_alone", "docs"]

PACKAGES = ("mis-kernels", "mis-core", "mis-server", "mis-bench", "mis-testing")  # dependencies first
SOURCES = [f"packages/{package}/src" for package in PACKAGES]
PROJECT = nox.project.load_toml("pyproject.toml")
DIST = Path("dist")

LIBTPU = "libtpu==0.0.51"  # the compiler of the stored baseline; another one makes other schedules
CPU = {"JAX_PLATFORMS": "cpu"}
IS_INSTALLED = "import mis_core as m; print(m.__file__); assert 'site-packages' in m.__file__, 'not from a wheel'"
IMPORT = "import sys; m = __import__(sys.argv[1]); print(m.__name__, m.__version__, m.__file__)"
IMPORT_ALL = """
import importlib, pkgutil, sys
top = importlib.import_module(sys.argv[1])
names = [found.name for found in pkgutil.walk_packages(top.__path__, top.__name__ + ".")]
extras = {"torch", "gguf", "llama_cpp", "vllm"}  # what mis-bench compares with
for name in names:
    if not name.endswith("__main__"):
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as missing:
            if missing.name not in extras:
                raise
            print(f"{name} needs {missing.name}")
print(f"{len(names)} modules of {top.__name__} import")
"""


@nox.session
def demo(session: nox.Session) -> None:
    """Start a server on a small checkpoint and score with the openai client."""
    session.install(*(f"./packages/{package}" for package in PACKAGES if package != "mis-bench"), *group("demo"))
    session.run("python", "examples/score_with_openai_client.py", *session.posargs, env=CPU)


@nox.session(requires=["build"])
def tests_cpu(session: nox.Session) -> None:
    """Run every test that needs no accelerator, against the built wheels; paths after `--` narrow it."""
    install_wheels(session, *group("test"), *group("oracle"))
    session.run("python", "-c", IS_INSTALLED)
    session.run("pytest", "-m", "not tpu and not tpu_aot and not gpu", *session.posargs, env=CPU)


@nox.session(requires=["build"])
@nox.parametrize("openai", ["openai>=3", "openai>=2,<3", "openai>=1,<2"], ids=["3", "2", "1"])
def clients(session: nox.Session, openai: str) -> None:
    """Score with every generation of the openai client that is in use."""
    others = [requirement for requirement in group("test") if not requirement.startswith("openai")]
    install_wheels(session, *others, openai)
    session.run("python", "-c", "import openai; print('openai', openai.__version__)")
    session.run("pytest", "packages/mis-server/tests/test_openai_client.py", *session.posargs, env=CPU)


@nox.session(requires=["build"])
def tests_tpu(session: nox.Session) -> None:
    """Run the tests that need a TPU; without one, say so and fail."""
    if not has_tpu():
        session.error("tests_tpu needs a TPU: this machine has neither /dev/accel* nor /dev/vfio/N")
    install_wheels(session, "jax[tpu]", *group("test"))
    session.run("pytest", "-m", "tpu", *session.posargs, env={"JAX_PLATFORMS": "tpu"})


@nox.session(requires=["build"])
def tpu_aot(session: nox.Session) -> None:
    """Compile every kernel and step for v5e, v6e and v7x without a TPU; `-- --quick` does a few."""
    install_wheels(session, LIBTPU, *group("test"))
    session.run("pytest", "-m", "tpu_aot", env=CPU)
    session.run("python", "-m", "mis_kernels.aot", *session.posargs, env=CPU)
    session.run(
        "python", "-m", "mis_core.aot", *[arg for arg in session.posargs if arg != "--update-baseline"], env=CPU
    )


@nox.session
def perf(session: nox.Session) -> None:
    """Compare the engine's speed with the base commit's, in pairs; `-- --base COMMIT` chooses it."""
    measured = [f"./packages/{package}" for package in PACKAGES if package != "mis-server"]
    session.install(*measured, "hatchling>=1.27", *(["jax[tpu]"] if has_tpu() else []))
    session.run("mis-bench", "perf", *session.posargs, env={"JAX_PLATFORMS": "tpu"} if has_tpu() else CPU)


@nox.session
def lint(session: nox.Session) -> None:
    """Check style, format and import contracts; `-- --fix` repairs what can be repaired."""
    session.install(*group("lint"))
    fix = "--fix" in session.posargs
    session.run("ruff", "check", *(["--fix"] if fix else []))
    session.run("ruff", "format", *([] if fix else ["--check"]))
    session.run("lint-imports", "--no-cache", env={"PYTHONPATH": ":".join(SOURCES)})


@nox.session
def types(session: nox.Session) -> None:
    """Check types of all packages at once."""
    session.install(*(f"./packages/{package}" for package in PACKAGES), "nox", "transformers", *group("types"))
    session.run("pyrefly", "check", *session.posargs)


@nox.session
def build(session: nox.Session) -> None:
    """Build every package's sdist and wheel into dist/ and check them."""
    session.install(*group("build"))
    shutil.rmtree(DIST, ignore_errors=True)  # `hatch build --all --clean` would leave only the last package's files
    session.run("hatch", "build", "--all")
    built = sorted(DIST.iterdir())
    if len(built) != 2 * len(PACKAGES):
        session.error(f"Expected a wheel and an sdist of {len(PACKAGES)} packages, found {[p.name for p in built]}.")
    session.run("twine", "check", "--strict", *map(str, built))
    session.run("check-wheel-contents", *map(str, DIST.glob("*.whl")))


@nox.session(requires=["build"], reuse_venv=False)
@nox.parametrize("package", PACKAGES, ids=PACKAGES)
def wheels_alone(session: nox.Session, package: str) -> None:
    """Install each wheel alone into an empty environment and import it."""
    session.install("--find-links", str(DIST), str(wheel_of(package)))
    session.run("python", "-c", IMPORT, package.replace("-", "_"))
    if package != "mis-testing":  # whose modules need its extras
        session.run("python", "-c", IMPORT_ALL, package.replace("-", "_"))


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation site; a broken link or an unknown name fails."""
    session.install(*group("docs"))
    session.run("zensical", "build", "--strict", "--clean", *session.posargs)


def group(name: str) -> list[str]:
    """Return the requirements of one dependency group of the root file."""
    return list(nox.project.dependency_groups(PROJECT, name))


def wheel_of(package: str) -> Path:
    """Return the one wheel of a package in dist/."""
    (wheel,) = DIST.glob(f"{package.replace('-', '_')}-*.whl")
    return wheel


def install_wheels(session: nox.Session, *others: str) -> None:
    """Install all wheels of dist/ and other requirements.

    One call, since the first of several would look for its sibling on the index. Then the wheels again
    by force: pip keeps an installed wheel of the same version, which would test yesterday's code.
    """
    wheels = [str(wheel_of(package)) for package in PACKAGES]
    session.install(*wheels, *others)
    session.install("--force-reinstall", "--no-deps", *wheels)


def has_tpu() -> bool:
    """Whether the kernel shows a TPU's device files."""
    return any(Path("/dev").glob("accel*")) or any(Path("/dev/vfio").glob("[0-9]*"))
