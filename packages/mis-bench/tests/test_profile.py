"""`mis-bench profile`, as a user calls it, on a tiny checkpoint."""

import gzip
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import jax
import pytest
from click.testing import CliRunner, Result
from jax.experimental.compilation_cache import compilation_cache
from jax.profiler import ProfileData

from mis_bench.artifact import read_artifact
from mis_bench.cli import main
from mis_bench.profile.breakdown import STAGES, by_stage
from mis_bench.profile.recording import recording_here
from mis_bench.profile.records import Profile, verdicts
from mis_bench.profile.trace import REQUEST, read_trace
from mis_core import Engine
from mis_core.aot.roofline import least_glue_bytes
from mis_core.models.config import read_model_config
from mis_testing.server import RunningServer, running_server

SMALL = "probe-30-6-5"  # steps of 64 tokens: each engine compiles one size
SERVED = ("--dtype", "float32", "--skip-warmup", "--api-key", "key", "--admin-api-key", "admin")


@pytest.fixture(scope="module", autouse=True)
def _compiled_here() -> Iterator[None]:
    """Compile what is profiled, and forget what others compiled: a profile describes all that is loaded."""
    jax.clear_caches()
    with pytest.MonkeyPatch.context() as patch, kept_steps(None):
        patch.setenv("JAX_ENABLE_COMPILATION_CACHE", "false")  # of processes that tests start
        yield


@contextmanager
def kept_steps(folder: Path | None) -> Iterator[None]:
    """Keep compiled steps in a folder, or nowhere, until the block ends."""
    shortest = "jax_persistent_cache_min_compile_time_secs"
    names = ("jax_enable_compilation_cache", "jax_compilation_cache_dir", shortest)
    before = {name: getattr(jax.config, name) for name in names}
    try:
        jax.config.update("jax_enable_compilation_cache", folder is not None)
        jax.config.update("jax_compilation_cache_dir", str(folder) if folder else before["jax_compilation_cache_dir"])
        jax.config.update(shortest, 0.0)  # steps are kept however fast they were compiled
        compilation_cache.reset_cache()  # JAX looks at its configuration once
        yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()


@pytest.fixture(scope="module")
def model(checkpoint_factory: Callable[..., Path]) -> Path:
    return checkpoint_factory(vocab_size=2048, num_hidden_layers=3)


def run(*arguments: str | Path) -> Result:
    """Run a profile; what it does not turn into a message is raised, so that a test that fails says why."""
    return CliRunner().invoke(main, ["profile", *(str(each) for each in arguments)], catch_exceptions=False)


@pytest.fixture(scope="module")
def profiled(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[Path, Profile, str]]:
    """`profiled("single")`: the folder, the artifact and standard output of a scenario, each run once."""
    made: dict[str, tuple[Path, Profile, str]] = {}

    def of(scenario: str, workload: str = SMALL) -> tuple[Path, Profile, str]:
        if scenario not in made:
            folder = tmp_path_factory.mktemp("profiles") / scenario
            engine = ("dtype=float32", "chunked_prefill_size=256", "context_length=512", "skip_warmup=true")
            options = [part for option in engine for part in ("--option", option)]
            arguments = ("--scenario", scenario, "--model", model, "--workload", workload, "--output", folder)
            result = run(*arguments, "--requests", "2", *options)
            assert result.exit_code == 0, result.output
            artifact = read_artifact(folder / "profile.json")
            assert isinstance(artifact, Profile)
            made[scenario] = folder, artifact, result.stdout
        return made[scenario]

    return of


def of_server(server: RunningServer, profile_dir: Path) -> tuple[str | Path, ...]:
    """Return the arguments that profile a server with the flags `SERVED`, but for the administrator's key."""
    return ("--scenario", "single", "--target", f"mis={server.base_url}", "--vocab-size", "2048", "--workload", SMALL,
            "--requests", "1", "--option", "api_key=key", "--profile-dir", profile_dir)  # fmt: skip


def test_a_trace_opens_in_both_viewers(profiled) -> None:
    folder, artifact, _ = profiled("single")
    xplane, perfetto = artifact.traces
    trace = read_trace(folder / xplane)
    assert [mark.name for mark in trace.marks].count(REQUEST) == len(artifact.points[0].profiled) == 2
    events = json.loads(gzip.decompress((folder / perfetto).read_bytes()))["traceEvents"]
    assert {"mis.plan", "mis.step", "mis.wait", "mis.read", "mis.answer"} <= {event.get("name") for event in events}


def test_steps_say_what_they_compute(profiled) -> None:
    folder, artifact, _ = profiled("single")
    planes = ProfileData.from_file(str(folder / artifact.traces[0])).planes
    events = [event for plane in planes for line in plane.lines for event in line.events]
    steps = [dict(event.stats) for event in events if event.name == "mis.step"]
    assert sum(int(step["items"]) for step in steps) == 2 * 6
    assert all({"step_num", "tokens"} <= set(step) for step in steps)


def test_every_stage_of_the_model_is_told_apart(profiled) -> None:
    _, artifact, _ = profiled("kernels")
    shares = {each.name: artifact.share(each) for each in artifact.stages}
    assert set(STAGES) - {"unattributed"} <= set(shares)
    assert sum(shares.values()) == pytest.approx(1)


def test_norms_in_float32_move_twice_the_bytes_of_bfloat16(model: Path, profiled) -> None:
    _, artifact, _ = profiled("kernels")
    (norms,) = [each for each in artifact.limits.parts if each.name == "norms and RoPE"]
    request = {"query": range(30), "items": [range(5)] * 6}
    in_bfloat16 = least_glue_bytes(read_model_config(model), request)
    assert norms.work == len(artifact.points[0].profiled) * 2 * in_bfloat16


def test_hot_spots_are_printed(profiled) -> None:
    _, artifact, stdout = profiled("kernels")
    assert "Hot spots" in stdout
    assert artifact.operations[0].name in stdout
    assert [each.ms for each in artifact.operations] == sorted((each.ms for each in artifact.operations), reverse=True)


def test_host_and_device_add_up(profiled) -> None:
    folder, artifact, _ = profiled("end-to-end")
    time = artifact.device
    assert 0 < time.busy_ms <= time.wall_ms
    planes = ProfileData.from_file(str(folder / artifact.traces[0])).planes
    assert any(event.name.startswith("$") for plane in planes for line in plane.lines for event in line.events)


def test_a_request_is_told_by_stage(profiled) -> None:
    _, artifact, stdout = profiled("single")
    (point,) = artifact.points
    assert (point.workload.num_items, len(point.timed)) == (6, 2)
    for call in point.timed:
        assert {"tokenize", "queue", "device", "finish"} <= set(call.stages_ms)
        assert sum(call.stages_ms[stage] for stage in ("tokenize", "queue", "device", "finish")) <= call.ms
    header = next(line for line in stdout.splitlines() if "tokenize ms" in line)
    assert all(f"{stage} ms" in header for stage in ("p50", "p99", "queue", "device", "finish"))


@pytest.mark.full
def test_sizes_are_scaled(profiled) -> None:
    _, artifact, stdout = profiled("batch-scaling", "batch-30-9-4")
    assert [point.workload.num_items for point in artifact.points] == [1, 8, 9]
    assert all(point.device and point.latency for point in artifact.points)
    metrics = {each.metric for each in verdicts(artifact)}
    assert {"single item, p50", "single item, p99", "batch of 8", "share of tokenization"} <= metrics
    assert {each.verdict for each in verdicts(artifact)} == {"not judged"}  # this is no TPU
    assert "not judged" in stdout


@pytest.mark.full
def test_memory_runs_are_not_for_latency(profiled) -> None:
    folder, artifact, stdout = profiled("memory")
    assert artifact.traces == []
    assert "p99" not in stdout
    assert [report.when for report in artifact.memory] == ["loaded", "served"]
    report = artifact.memory[-1]
    assert max(report.tensors, key=lambda name: report.tensors[name].mib) in ("cache/keys", "cache/values")
    assert gzip.decompress((folder / report.pprof).read_bytes())
    assert "do not count" in stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--scenario", "nothing"], "is not one of"),
        ([], "Missing option '--scenario'"),
        (
            ["--scenario", "memory", "--target", "mis=http://127.0.0.1:1", "--profile-dir", "."],
            "memory needs the target engine",
        ),
        (["--scenario", "single", "--target", "mis=http://127.0.0.1:1"], "Profiling a server needs --profile-dir"),
        (["--scenario", "single", "--target", "vllm=http://127.0.0.1:1"], "cannot be profiled"),
        (["--scenario", "single", "--workload", "nonsense"], "Write KIND-Q-N-L"),
        (["--scenario", "batch-scaling", "--workload", "track_low"], "cannot be scaled"),
        (["--scenario", "single"], "--model"),
        (["--scenario", "single", "--model", "/no/such/folder"], "/no/such/folder"),
    ],
)
def test_mistakes_are_one_clear_message_and_a_failure(arguments: list[str], message: str) -> None:
    result = run(*arguments)
    assert result.exit_code != 0
    assert message in " ".join(result.stderr.split())
    assert "Traceback" not in result.output


def test_a_folder_is_used_once(model: Path, profiled) -> None:
    folder, _, _ = profiled("single")
    result = run("--scenario", "single", "--model", model, "--output", folder)
    assert result.exit_code == 2
    assert "already holds" in " ".join(result.stderr.split())


def test_one_profile_at_a_time(model: Path, tmp_path: Path) -> None:
    jax.profiler.start_trace(tmp_path / "other")
    try:
        result = run("--scenario", "kernels", "--model", model, "--workload", "probe-8-1-2", "--output", tmp_path / "x",
                     "--option", "skip_warmup=true", "--option", "context_length=64")  # fmt: skip
    finally:
        jax.profiler.stop_trace()
    assert result.exit_code == 1
    assert "A profile is under way in this process" in result.stderr
    assert not (tmp_path / "x" / "profile.json").exists()


def test_a_servers_engine_is_profiled(model: Path, tmp_path: Path) -> None:
    server_folder = tmp_path / "server"
    server_folder.mkdir()
    with running_server(model, *SERVED, "--profile-dir", str(server_folder)) as server:
        refused = run(*of_server(server, server_folder), "--output", tmp_path / "refused")
        copied = run(*of_server(server, server_folder), "--output", tmp_path / "copied", "--option", "admin_key=admin")
    assert refused.exit_code == 1
    assert "--option admin_key=KEY" in " ".join(refused.stderr.split())
    assert copied.exit_code == 0, copied.output
    artifact = read_artifact(tmp_path / "copied" / "profile.json")
    assert isinstance(artifact, Profile)
    assert {"attention", "down"} <= {each.name for each in artifact.stages}


@pytest.mark.full
def test_a_server_that_began_with_kept_steps_is_profiled(model: Path, tmp_path: Path) -> None:
    found = []
    for name in ("compiled", "kept"):
        folder = tmp_path / name
        folder.mkdir()
        flags = (*SERVED, "--profile-dir", str(folder), "--compilation-cache-dir", str(tmp_path / "steps"))
        with running_server(model, *flags, env={"JAX_ENABLE_COMPILATION_CACHE": "true"}) as server:
            done = run(*of_server(server, folder), "--output", folder / "copied", "--option", "admin_key=admin")
        assert done.exit_code == 0, done.output
        artifact = read_artifact(folder / "copied" / "profile.json")
        assert isinstance(artifact, Profile)
        found.append({each.name: each.count for each in artifact.stages})
    assert {"attention", "down"} <= set(found[0])
    assert found[1] == found[0]


def test_an_engine_with_kept_steps_is_profiled(model: Path, tmp_path: Path) -> None:
    """A step that was read from a folder runs under another number than the one it is described under."""
    options = {"dtype": "float32", "chunked_prefill_size": 256, "context_length": 256, "skip_warmup": True}
    found = []
    with kept_steps(tmp_path / "steps"):
        for name in ("compiled", "kept"):
            jax.clear_caches()
            with Engine.from_pretrained(str(model), progress=False, **options) as engine:
                engine.score([1, 2, 3], [[4], [5, 6]], [7, 8])
                with recording_here(tmp_path / name, python_calls=False):
                    engine.score([2, 2, 3], [[4], [5, 6]], [7, 8])
            (path,) = (tmp_path / name).rglob("*.xplane.pb")
            found.append({each.name: each.count for each in by_stage(read_trace(path).operations)})
    assert list((tmp_path / "steps").glob("*-cache"))
    assert set(STAGES) - {"unattributed"} <= set(found[0])
    assert found[1] == found[0]
