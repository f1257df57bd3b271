"""The first hour on a TPU, with a cloud that is made up: whatever happens, what was created is deleted."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from documented_commands import commands, faults
from mis_bench.estimate.serving import ServingEstimate, Stage
from mis_bench.profile.breakdown import STAGES, UNATTRIBUTED
from mis_bench.profile.records import Point, Profile

ROOT = Path(__file__).parents[1]
FAKE = Path(__file__).parent / "support" / "fake_cloud.sh"

MEASURING = {
    "tests": "*ssh*tests_tpu*",
    "validate": "*ssh*mis-bench validate --model*",
    "canonical": "*ssh*canonical-2000*",
    "profile": "*ssh*mis-bench profile*",
    "estimate": "*ssh*mis-bench estimate*",
    "against-estimate": "*ssh*against_estimate*",
    "artifacts": "*ssh*validate-artifacts*",
}
BEFORE = {"create": "gcloud*create*", "copy": "*scp*.bundle*", "install": "*ssh*git clone*"}
REACH, FETCH = "*ssh*; true", "*scp*results*"
EVERY_STEP = {**BEFORE, "reach": REACH, **MEASURING, "fetch": FETCH}


class Ran(NamedTuple):
    """How a session ended."""

    status: int
    stderr: str
    calls: list[str]
    left: list[str]
    output: Path

    @property
    def last_line(self) -> str:
        return self.stderr.splitlines()[-1]

    def deletions(self) -> list[str]:
        return [call for call in self.calls if " delete " in call]


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a small repository with the script, and a folder with the made-up programs."""
    root = tmp_path_factory.mktemp("clone")
    shutil.copytree(ROOT / "deploy" / "tpu", root / "deploy" / "tpu")
    (root / "bin").mkdir()
    for program in ("gcloud", "ssh", "scp"):
        (root / "bin" / program).symlink_to(FAKE)
    identity = ("-c", "user.name=test", "-c", "user.email=test@localhost")
    for command in (("init", "-q"), ("add", "deploy"), ("commit", "-q", "-m", "all")):
        subprocess.run(["git", *identity, *command], cwd=root, check=True)
    return root


Session = Callable[..., Ran]


@pytest.fixture
def session(clone: Path, tmp_path: Path) -> Session:
    """Run the script.

    Variables are those of the made-up programs, `send` is a signal to send while one hangs, and without `read` whoever
    reads what the script says goes away after a line.
    """

    def run(
        *arguments: str,
        send: signal.Signals | None = None,
        read: bool = True,
        existing: tuple[str, ...] = (),
        **cloud: str,
    ) -> Ran:
        state = tmp_path / "cloud"
        for kind in ("tpu-vm", "queued-resources"):
            (state / kind).mkdir(parents=True)
        for thing in existing:
            (state / thing).write_text("READY\n")
        output = tmp_path / "output"
        env = os.environ | {"PATH": f"{clone / 'bin'}:{os.environ['PATH']}", "CLOUD": str(state), **cloud}
        command = [
            str(clone / "deploy/tpu/first-hour.sh"),
            "--output",
            str(output),
            "--poll",
            "0.01",
            "--name",
            "mis-test",
            *arguments,
        ]
        # Where the tests run in a shell's background, SIGINT is ignored, and by what they start, too.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        finally:
            signal.signal(signal.SIGINT, before)
        with process:
            if send:
                while not (state / "hanging").exists() and process.poll() is None:
                    time.sleep(0.01)
                process.send_signal(send)
            if read:
                _, stderr = process.communicate(timeout=60)
            else:
                stderr = process.stderr.readline()
                process.stderr.close()
                process.wait(timeout=60)
        calls = (state / "calls").read_text().splitlines() if (state / "calls").exists() else []
        left = [f"{kind}/{path.name}" for kind in ("tpu-vm", "queued-resources") for path in (state / kind).iterdir()]
        return Ran(process.returncode, stderr, calls, left, output)

    return run


WAYS = pytest.mark.parametrize("way", [(), ("--queue",)], ids=["vm", "queue"])


@WAYS
def test_all_steps_pass_and_nothing_is_left(session: Session, way: tuple[str, ...]) -> None:
    ran = session(*way)
    assert (ran.status, ran.left) == (0, [])
    assert ran.last_line.startswith("first-hour: passed; what was created is deleted; all output is in ")
    summary = dict(line.split(": ") for line in (ran.output / "summary.txt").read_text().splitlines())
    assert all(verdict.startswith("passed") for verdict in summary.values())
    assert list(summary) == [
        "create", *(["queue"] if way else []), "reach", "copy", "install", *MEASURING, "fetch",
        "delete-queued-resources" if way else "delete-tpu-vm", *(["delete-tpu-vm"] if way else []),
    ]  # fmt: skip
    assert {path.stem for path in ran.output.glob("*.log")} == {*summary, "state"}
    (create,) = [call for call in ran.calls if " create " in call]
    assert "--zone=us-east5-b --accelerator-type=v6e-1" in create
    assert "version=v2-alpha-tpuv6e" in create
    assert "--spot" in create
    assert len(ran.deletions()) == 1  # a queued VM goes with its request


def test_a_machine_that_is_there_is_used_and_not_deleted(session: Session) -> None:
    ran = session("--address", "me@host", existing=("tpu-vm/host",))
    assert (ran.status, ran.left) == (0, ["tpu-vm/host"])
    assert "nothing was created" in ran.last_line
    assert [call for call in ran.calls if call.startswith("gcloud")] == []
    assert all("me@host" in call for call in ran.calls)


@pytest.mark.parametrize("step", [*BEFORE, *MEASURING, "fetch"])
def test_a_step_that_fails_leaves_nothing(session: Session, step: str) -> None:
    ran = session(FAIL=EVERY_STEP[step])
    assert (ran.status, ran.left) == (1, [])
    assert ran.last_line.startswith(f"first-hour: FAILED in {step}; what was created is deleted")
    assert f"first-hour: {step} FAILED (1): ERROR: (fake)" in ran.stderr
    assert any(fnmatch(call, FETCH) for call in ran.calls) == (step != "create")  # what there is comes home
    asked = [name for name, pattern in MEASURING.items() if any(fnmatch(call, pattern) for call in ran.calls)]
    assert asked == ([] if step in BEFORE else list(MEASURING))  # each is worth having without the others


def test_a_machine_that_is_there_and_fails_is_not_deleted(session: Session) -> None:
    ran = session("--address", "me@host", existing=("tpu-vm/host",), FAIL="ssh*tests_tpu*")
    assert (ran.status, ran.left) == (1, ["tpu-vm/host"])


SIGNALS = pytest.mark.parametrize("send", [signal.SIGINT, signal.SIGTERM], ids=["INT", "TERM"])


@SIGNALS
@pytest.mark.parametrize("step", [*BEFORE, "reach", *MEASURING])
def test_an_interruption_leaves_nothing(session: Session, step: str, send: signal.Signals) -> None:
    ran = session(send=send, HANG=EVERY_STEP[step])
    assert (ran.status, ran.left) == (128 + send, [])
    assert ran.last_line.startswith(f"first-hour: INTERRUPTED in {step}; what was created is deleted")
    assert f"{step}: INTERRUPTED" in (ran.output / "summary.txt").read_text()
    assert any(fnmatch(call, FETCH) for call in ran.calls) == (step not in ("create", "reach"))


@SIGNALS
@pytest.mark.parametrize("step", ["create", "install"])
def test_an_interruption_leaves_nothing_in_the_queue(session: Session, step: str, send: signal.Signals) -> None:
    ran = session("--queue", send=send, HANG=EVERY_STEP[step])
    assert (ran.status, ran.left) == (128 + send, [])


@SIGNALS
def test_an_interrupted_wait_in_the_queue_leaves_nothing(session: Session, send: signal.Signals) -> None:
    ran = session("--queue", send=send, HANG="gcloud*describe mis-test-queue*")
    assert (ran.status, ran.left) == (128 + send, [])
    assert ran.last_line.startswith("first-hour: INTERRUPTED in queue; what was created is deleted")


@SIGNALS
def test_an_interruption_during_the_download_still_deletes(session: Session, send: signal.Signals) -> None:
    ran = session(send=send, HANG=FETCH)
    assert (ran.status, ran.left) == (1, [])
    assert ran.last_line.startswith("first-hour: FAILED in fetch; what was created is deleted")


@SIGNALS
def test_an_interruption_does_not_keep_the_script_from_deleting(session: Session, send: signal.Signals) -> None:
    ran = session(send=send, HANG="gcloud*delete*", HANG_FOR="0.3")
    assert (ran.status, ran.left) == (0, [])
    assert len(ran.deletions()) == 2


def test_an_interrupted_look_at_what_exists_creates_nothing(session: Session) -> None:
    ran = session(send=signal.SIGTERM, HANG="gcloud*describe*", existing=("tpu-vm/mis-test",))
    assert (ran.status, ran.left, ran.deletions()) == (143, ["tpu-vm/mis-test"], [])
    assert "nothing was created" in ran.last_line


@WAYS
def test_a_creation_that_half_succeeded_is_deleted(session: Session, way: tuple[str, ...]) -> None:
    ran = session(*way, FAIL="gcloud*create*", HALF="yes")
    assert (ran.status, ran.left) == (1, [])
    assert len(ran.deletions()) == 1


@WAYS
def test_a_deletion_that_fails_twice_is_tried_again(session: Session, way: tuple[str, ...]) -> None:
    ran = session(*way, FAIL="gcloud*delete*", FAIL_TIMES="2")
    assert (ran.status, ran.left) == (0, [])
    assert len(ran.deletions()) == 3
    assert ran.stderr.count("to delete") == 2


def test_a_deletion_that_keeps_failing_is_said_with_the_command(session: Session) -> None:
    ran = session("--project", "ours", FAIL="gcloud*delete*")
    assert (ran.status, ran.left) == (3, ["tpu-vm/mis-test"])
    command = "gcloud compute tpus tpu-vm delete mis-test --zone=us-east5-b --project=ours --quiet"
    assert f"NOT DELETED, and it costs until it is: {command}" in ran.stderr
    assert "SOMETHING WAS NOT DELETED" in ran.last_line


def test_a_failed_deletion_does_not_hide_behind_another_failure(session: Session) -> None:
    ran = session("--queue", FAIL="gcloud*@(delete|create)*", HALF="yes")
    assert ran.status == 3
    assert ran.left == ["queued-resources/mis-test-queue"]


@pytest.mark.parametrize("existing", ["tpu-vm/mis-test", "queued-resources/mis-test-queue"])
def test_what_is_somebody_elses_is_neither_taken_nor_deleted(session: Session, existing: str) -> None:
    ran = session("--queue", existing=(existing,))
    assert (ran.status, ran.left, ran.deletions()) == (1, [existing], [])
    assert "already; it stays as it is" in ran.stderr


def test_without_a_right_to_look_nothing_is_created(session: Session) -> None:
    ran = session(FAIL="gcloud*describe*")
    assert (ran.status, ran.left, ran.deletions()) == (1, [], [])
    assert "UNAUTHENTICATED" in ran.stderr


def test_what_takes_too_long_ends(session: Session) -> None:
    ran = session("--limit", "0")
    assert (ran.status, ran.left) == (1, [])
    assert "The 0 minutes are over." in ran.stderr


@pytest.mark.parametrize("state", ["FAILED", "SUSPENDED"])
def test_a_request_that_will_not_be_granted_is_deleted(session: Session, state: str) -> None:
    ran = session("--queue", STATES=f"WAITING_FOR_RESOURCES {state}")
    assert (ran.status, ran.left) == (1, [])
    assert f"queue FAILED (1): The request is {state}." in ran.stderr


@pytest.mark.parametrize("fail", ["", EVERY_STEP["install"]], ids=["passes", "fails"])
def test_nobody_has_to_listen(session: Session, fail: str) -> None:
    ran = session(read=False, FAIL=fail)
    assert ran.left == []
    assert len(ran.deletions()) == 1


def test_a_machine_that_answers_late_is_waited_for(session: Session) -> None:
    ran = session(FAIL=REACH, FAIL_TIMES="2")
    assert (ran.status, ran.left) == (0, [])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--nothing", "x"), "there is no option --nothing"),
        (("--zone",), "--zone is unknown, or has no value"),
        (("--accelerator-type", "v2-8"), "is v6e-1 or v5litepod-1"),
        (("--name", "A b"), "small letters"),
        (("--limit", "x"), "whole number"),
    ],
)
def test_a_wrong_command_line_does_nothing(session: Session, arguments: tuple[str, ...], says: str) -> None:
    ran = session(*arguments)
    assert (ran.status, ran.calls) == (2, [])
    assert says in ran.last_line


def test_what_runs_on_the_machine_gets_past_its_command_line(session: Session) -> None:
    ran = session("--address", "host")
    sent = [call.split(". venv/bin/activate; ")[1] for call in ran.calls if call.startswith("ssh")]
    found = [command for each in sent for command in commands(f"```bash\n{each}\n```\n")]
    assert {"nox", "mis-bench", "git"} <= {command[0] for command in found}
    assert [f"{command}: {fault}" for command in found for fault in faults(command)] == []


@WAYS
def test_gcloud_is_asked_for_what_it_knows(session: Session, way: tuple[str, ...]) -> None:
    ran = session(*way, "--project", "ours")
    asked = [call.split(" --command=")[0].split()[1:] for call in ran.calls]
    assert {tuple(arguments[2:4]) for arguments in asked} >= {
        ("tpu-vm", "describe"),
        ("tpu-vm", "ssh"),
        ("tpu-vm", "scp"),
    }
    assert [fault for arguments in asked for fault in faults(["gcloud", *arguments])] == []


def a_profile(workload: str = "canonical-2000-500-20") -> dict[str, Any]:
    """Return the part of a profile that is compared, as `mis-bench profile` writes it."""
    about = {"name": workload, "sha256": "0" * 64, "num_items": 500}
    calls = [{"ms": 60.0, "stages_ms": {}}] * 2
    stages = [("qkv", 20.0), ("down", 30.0), ("attention", 40.0), ("rest_of_layers", 4.0), ("new_stage", 2.0)]
    return {
        "points": [{"workload": about, "timed": [], "profiled": calls}],
        "device": {"wall_ms": 120.0, "busy_ms": 100.0},
        "stages": [{"name": name, "ms": ms, "count": 2} for name, ms in stages],
    }


ESTIMATE = {
    "workload": "canonical-2000-500-20",
    "milliseconds": 40.0,
    "stages": [
        {"name": "mlp", "milliseconds": 20.0, "share": 0.5},
        {"name": "head", "milliseconds": 1.0, "share": 0.1},
    ],
}


def against(folder: Path, profile: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    paths = [folder / "profile.json", folder / "estimate.json"]
    for path, document in zip(paths, (profile, ESTIMATE), strict=True):
        path.write_text(json.dumps(document))
    command = [sys.executable, str(ROOT / "deploy/tpu/against_estimate.py"), *map(str, paths)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_profile_is_held_against_the_estimate_part_by_part(tmp_path: Path) -> None:
    done = against(tmp_path, a_profile())
    table = {line[:20].strip(): line[20:].split() for line in done.stdout.splitlines()[1:]}
    assert table == {
        "products and norms": ["25.00", "20.00", "80%"],
        "attention": ["20.00", "0.00", "0%"],
        "head": ["0.00", "1.00"],
        "rest": ["3.00", "0.00", "0%"],
        "all": ["50.00", "40.00", "80%"],
    }


def test_another_request_is_not_held_against_the_estimate(tmp_path: Path) -> None:
    done = against(tmp_path, a_profile("probe-5-2-3"))
    assert done.returncode == 1
    assert "The profile is of probe-5-2-3" in done.stderr


def test_what_is_compared_is_what_mis_bench_writes() -> None:
    assert {"points", "device", "stages"} <= set(Profile.model_fields)
    assert {"workload", "profiled"} <= set(Point.model_fields)
    assert {"workload", "milliseconds", "stages"} <= set(ServingEstimate.model_fields)
    assert {"name", "milliseconds"} <= set(Stage.model_fields)
    source = (ROOT / "deploy/tpu/against_estimate.py").read_text()
    unknown = {stage for stage in STAGES if f'"{stage}"' not in source}
    assert unknown == {"rotary_tables", "rest_of_layers", UNATTRIBUTED}  # the rest
