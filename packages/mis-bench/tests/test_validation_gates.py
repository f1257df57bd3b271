"""Every gate passes on a scorer that does everything right, and fails on the fault that it is there to find."""

import asyncio
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from mis_bench.artifact import read_artifact
from mis_bench.cli import main
from mis_bench.targets.base import About, CallFailed, Capabilities, Layout, Reply, Target, TargetUnavailable
from mis_bench.targets.blocking import Blocking, BlockingOpener
from mis_bench.targets.spec import TargetSpec
from mis_bench.validation.ask import Scorer
from mis_bench.validation.cases import build_cases
from mis_bench.validation.gates import (
    Gate,
    ModelValidation,
    Timing,
    Validation,
    holds,
)
from mis_bench.validation.run import Subject, steps, validate
from mis_bench.workload import Workload

Fault = Callable[["Fake", Workload, np.ndarray], np.ndarray]
CASES = build_cases(2048)


class Fake:
    """Scores that depend on query + item and the seed alone, unless a fault changes them."""

    def __init__(
        self,
        fault: Fault | None = None,
        seed: int = 0,
        delimiter: int | None = None,
        seconds: float = 0,
        dtype: str = "bfloat16",
        devices: str = "1 x cpu",
    ) -> None:
        self.fault, self.seed, self.delimiter, self.seconds = fault, seed, delimiter, seconds
        self.dtype, self.devices = dtype, devices
        self.cached: set[bytes] = set()
        self.at_once, self.lock, self.is_closed = 0, threading.Lock(), False

    @property
    def about(self) -> About:
        return About("fake", "fake", "a model", dtype=self.dtype, options={"devices": self.devices})

    def score(self, workload: Workload, layout: Layout = {}) -> Reply:  # noqa: B006
        with self.lock:
            self.at_once += 1
        time.sleep(self.seconds + 0.1 * bool(layout))  # item by item
        query = np.asarray(workload.query)
        query = query if self.delimiter is None else np.append(query, self.delimiter)
        logits = np.stack([self.logits(np.append(query, item), workload) for item in workload.items])
        odds = np.exp(logits)
        scores = odds / odds.sum(1, keepdims=True) if workload.apply_softmax else odds / 1e4
        scores = scores if self.fault is None or layout else self.fault(self, workload, scores)
        with self.lock:
            self.at_once -= 1
        self.cached.add(query.tobytes())
        return Reply(scores)

    def logits(self, tokens: np.ndarray, workload: Workload) -> np.ndarray:
        random = np.random.default_rng([self.seed, zlib.crc32(tokens.astype(np.int32).tobytes())])
        return 2 * random.standard_normal(len(workload.label_token_ids))

    def forget(self) -> None:
        self.cached.clear()

    def counts(self) -> dict[str, float]:
        return {}

    def close(self) -> None:
        self.is_closed = True


def opening(make: Callable[..., Fake]) -> Callable[..., object]:
    """Return what opens a fake as a target."""

    async def opened(*arguments: int) -> Target:
        return Blocking(make(*arguments))

    return opened


def subject_of(multi: Fake, serial: Fake, *, reference, delimited=None) -> Subject:
    return Subject(
        multi=Scorer(Blocking(multi), 60.0),
        serial=Scorer(Blocking(serial), 60.0, splits=True),
        delimited=opening(delimited) if delimited else None,
        reference=reference if isinstance(reference, str) else opening(reference),
    )


def run(
    multi: Fake | None = None,
    *,
    serial: Fake | None = None,
    reference=Fake,
    delimited=None,
    counts: Sequence[int] = (),
    on_gate=lambda _: None,
) -> ModelValidation:
    """Validate fakes."""
    subject = subject_of(multi or Fake(), serial or Fake(), reference=reference, delimited=delimited)
    return asyncio.run(
        validate("fake", subject, dtype="bfloat16", cases=CASES, counts=counts, vocab_size=2048, on_gate=on_gate)
    )


def gate_of(found: ModelValidation, name: str) -> Gate:
    return next(gate for gate in found.gates if gate.name == name)


def failed(found: ModelValidation) -> set[str]:
    """Names of gates that did not pass, those of the speed-up apart."""
    names = {gate.name for gate in found.gates if gate.status in ("failed", "not run")}
    return {name for name in names if not name.startswith("performance.")}


def test_a_faultless_scorer_passes_every_gate_and_progress_is_told() -> None:
    told: list[str] = []
    found = run(delimited=lambda token: Fake(delimiter=token), on_gate=told.append)
    assert failed(found) == set()
    assert len(told) == steps([]) == len(set(told))
    measured = {gate.name: gate.measured for gate in found.gates}
    assert measured[MUTATION] == measured[LENGTH] == 0.0
    for name in (
        "equivalence_query_plus_delimiter.{}",
        "{}_jax_serial_vs_torch_serial",
        "{}_jax_multi_vs_torch_serial",
    ):
        assert (measured[name.format("max_abs_diff")] or 0.0) < 1e-12


def leaks_content(fake: Fake, workload: Workload, scores: np.ndarray) -> np.ndarray:
    if len(scores) > 1:
        scores[1] += 1e-7 * scores[0]
    return scores


def leaks_place(_: Fake, workload: Workload, scores: np.ndarray) -> np.ndarray:
    return scores * (1 + 1e-12 * np.arange(len(scores)))[:, None]


def leaks_count(_: Fake, workload: Workload, scores: np.ndarray) -> np.ndarray:
    return scores * (1 + 1e-12 * len(scores))


def leaks_length(_: Fake, workload: Workload, scores: np.ndarray) -> np.ndarray:
    return scores * (1 + 1e-12 * sum(map(len, workload.items)))


def leaks_cache(fake: Fake, workload: Workload, scores: np.ndarray) -> np.ndarray:
    return scores * (1 + 1e-12 * (np.asarray(workload.query).tobytes() in fake.cached))


def leaks_other_requests(fake: Fake, workload: Workload, scores: np.ndarray) -> np.ndarray:
    return scores * (1 + 1e-12 * (fake.at_once > 1))


MUTATION, LENGTH, REVERSED, PERMUTED, DROPPED, DUPLICATED, PRECEDING, OTHERS, REPEATED = (
    f"isolation.{kind}_max_abs_diff"
    for kind in (
        "same_length_mutation", "changed_length_mutation", "reversed_order", "permutation", "dropped_items",
        "duplicated_items", "preceding_items", "other_requests", "repetition",
    )
)  # fmt: skip


@pytest.mark.parametrize(
    ("fault", "gates"),
    [
        (leaks_content, {MUTATION, LENGTH, REVERSED, PERMUTED, DROPPED, DUPLICATED}),
        (leaks_place, {REVERSED, PERMUTED, DROPPED, DUPLICATED, PRECEDING}),
        (leaks_count, {DROPPED, DUPLICATED, PRECEDING}),
        (leaks_length, {LENGTH, DROPPED, DUPLICATED, PRECEDING}),
        (leaks_cache, {REPEATED}),
        (leaks_other_requests, {OTHERS}),
    ],
)
def test_the_faintest_leak_fails_isolation_and_nothing_else(fault: Fault, gates: set[str]) -> None:
    found = failed(run(Fake(fault, seconds=0.0003)))
    assert gates <= found
    assert all(name.startswith("isolation.") for name in found)


def test_a_failed_isolation_gate_names_the_case_and_the_item() -> None:
    gate = gate_of(run(Fake(leaks_content)), MUTATION)
    assert gate.measured is not None
    assert 0 < gate.measured < 1e-6
    assert gate.detail.endswith(", item 1")


def test_scores_that_ignore_the_items_are_isolated_and_fail_all_the_same() -> None:
    same = failed(run(Fake(lambda *_: np.full((len(_[1].items), 2), 0.5)), serial=None))
    assert "sensitivity.mutated_item_min_abs_diff" in same
    assert not any(name.startswith("isolation.") for name in same)


def test_flat_scores_fail_because_comparisons_cannot_see_a_fault_in_them() -> None:
    def flat(fake: Fake, workload: Workload, scores: np.ndarray) -> np.ndarray:
        return 0.5 + 1e-3 * scores

    found = failed(run(Fake(flat), serial=Fake(flat), reference=lambda: Fake(flat)))
    assert found == {"sensitivity.swapped_items_mean_abs_diff"}


def test_swapped_items_fail_equivalence_and_parity_of_the_target() -> None:
    def swaps(fake: Fake, workload: Workload, scores: np.ndarray) -> np.ndarray:
        return np.roll(scores, 1, axis=0)

    found = failed(run(Fake(swaps)))
    assert {"equivalence_serial.max_abs_diff", "equivalence_serial.mean_abs_diff"} <= found
    assert {"max_abs_diff_jax_multi_vs_torch_serial", "equivalence_query_plus_delimiter.max_abs_diff"} <= found
    assert "max_abs_diff_jax_serial_vs_torch_serial" not in found


def test_a_fault_that_a_softmax_hides_fails_by_log_probability() -> None:
    def doubles(fake: Fake, workload: Workload, scores: np.ndarray) -> np.ndarray:
        return scores if workload.apply_softmax else 2 * scores

    found = failed(run(Fake(doubles)))
    assert "equivalence_serial.max_logprob_diff" in found
    assert "equivalence_serial.max_abs_diff" not in found


def test_a_fault_of_the_softmax_alone_fails() -> None:
    def blurs(fake: Fake, workload: Workload, scores: np.ndarray) -> np.ndarray:
        return 0.9 * scores if workload.apply_softmax else scores

    assert "equivalence_serial.max_abs_diff" in failed(run(Fake(blurs)))


def test_another_delimiter_fails_its_gate_only() -> None:
    found = failed(run(delimited=lambda token: Fake(delimiter=token + 1)))
    assert found
    assert all(name.startswith("equivalence_query_plus_delimiter.") for name in found)


def test_another_checkpoint_in_pytorch_fails_parity_only() -> None:
    found = failed(run(reference=lambda: Fake(seed=1)))
    assert {"max_abs_diff_jax_serial_vs_torch_serial", "max_abs_diff_jax_multi_vs_torch_serial"} <= found
    assert all(name.endswith("_vs_torch_serial") for name in found)


def unavailable(*_: object) -> Fake:
    raise TargetUnavailable("PyTorch is not installed.")


def test_without_pytorch_its_gates_did_not_run_unless_they_are_waived() -> None:
    found = run(reference=unavailable)
    assert {gate.status for gate in found.gates if gate.name in failed(found)} == {"not run"}
    assert {gate.detail for gate in found.gates if gate.name in failed(found)} == {"PyTorch is not installed."}
    assert len(failed(found)) == 6
    waived = run(reference="no PyTorch on this TPU host")
    assert failed(waived) == set()
    assert [gate.detail for gate in waived.gates if gate.status == "waived"] == ["no PyTorch on this TPU host"] * 6


def test_a_delimited_target_that_cannot_be_had_leaves_its_gates_not_run() -> None:
    found = run(delimited=unavailable)
    assert all(name.startswith("equivalence_query_plus_delimiter.") for name in failed(found))


def refuses(fake: Fake, workload: Workload, scores: np.ndarray) -> np.ndarray:
    if len(scores) > 6:
        raise CallFailed("error", "the engine fell over")
    return scores


def loses_an_item(_: Fake, workload: Workload, scores: np.ndarray) -> np.ndarray:
    return scores[:-1]


def is_not_a_number(_: Fake, workload: Workload, scores: np.ndarray) -> np.ndarray:
    return scores * np.nan


@pytest.mark.parametrize(
    ("fault", "message"),
    [(refuses, "fell over"), (loses_an_item, "expected (5, 2)"), (is_not_a_number, "not finite")],
)
def test_calls_that_fail_fail_the_gates_with_the_reason(fault: Fault, message: str) -> None:
    found = run(Fake(fault))
    gate = gate_of(found, MUTATION)
    assert (gate.status, found.passed) == ("not run", False)
    assert message in gate.detail
    assert {OTHERS, "equivalence_serial.max_abs_diff"} <= failed(found)


@pytest.mark.parametrize(("multi_s", "serial_s", "status"), [(0.005, 0.005, "passed"), (0.05, 0.0, "failed")])
def test_speed_has_a_gate_from_32_items_on(multi_s: float, serial_s: float, status: str) -> None:
    found = run(Fake(seconds=multi_s), serial=Fake(seconds=serial_s), counts=[1, 32], reference="not here")
    assert [gate.status for gate in found.gates if gate.name.startswith("performance.")] == [status]
    assert [len(timing.multi_ms) for timing in found.timings] == [len(timing.serial_ms) for timing in found.timings]
    assert found.timings[1].speedup == np.median(found.timings[1].serial_ms) / np.median(found.timings[1].multi_ms)


def test_a_gate_without_a_figure_has_not_passed() -> None:
    whole = run(reference="not here", counts=[32], multi=Fake(seconds=0.001), serial=Fake(seconds=0.001))
    assert whole.passed
    for lost in range(len(whole.figures)):
        figures = [figure for number, figure in enumerate(whole.figures) if number != lost]
        waived = whole.figures[lost].name.endswith("_vs_torch_serial")
        assert whole.model_copy(update={"figures": figures}).passed == waived
    assert not whole.model_copy(update={"timings": [Timing(items=1, multi_ms=[1.0], serial_ms=[9.0])]}).passed


def test_rules_hold_at_their_thresholds() -> None:
    assert [holds(1.0, rule, 1.0) for rule in ("at most", "at least", "above")] == [True, True, False]
    assert [holds(2.0, rule, 1.0) for rule in ("at most", "at least", "above")] == [False, True, True]


# The command line.


@pytest.fixture
def model(checkpoint_factory) -> str:
    return str(checkpoint_factory(vocab_size=2048))


@pytest.fixture
def invoke(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Run `mis-bench validate` with fakes for targets."""

    def make(
        multi: Fake | None = None, reference: Callable[..., Fake] = Fake, broken: dict[str, BaseException] | None = None
    ):
        def opener(target: TargetSpec, *, model: Path | None) -> BlockingOpener:
            def made() -> Fake:
                if target.spec != "engine":
                    return reference()
                if error := (broken or {}).get(str(model)):
                    raise error
                token = target.options.get("multi_item_scoring_delimiter")
                return Fake(delimiter=int(token)) if token else multi or Fake()

            return BlockingOpener(made, Capabilities(layouts=True))

        monkeypatch.setattr("mis_bench.targets.registry.opener", opener)

        def call(*arguments: str):
            return CliRunner().invoke(main, ["validate", "--output", str(tmp_path), *arguments])

        return call

    return make


def test_the_command_prints_a_table_writes_the_artifact_and_succeeds(invoke, model: str, tmp_path: Path) -> None:
    result = invoke()("--model", model, "--speedup-items", "1,32")
    assert result.exit_code == 0, result.output
    assert f"{model}: passed every gate" in result.stdout
    found = written(tmp_path)
    assert found.passed
    assert [timing.items for timing in found.models[0].timings] == [1, 32]


@pytest.fixture
def other(checkpoint_factory) -> str:
    return str(checkpoint_factory(vocab_size=2048, seed=1))


def written(folder: Path) -> Validation:
    found = read_artifact(folder / "validation.json")
    assert isinstance(found, Validation)
    return found


def test_an_interrupted_validation_has_not_passed(invoke, model: str, other: str, tmp_path: Path) -> None:
    result = invoke(broken={other: KeyboardInterrupt()})("--model", model, "--model", other)
    assert result.exit_code == 1
    found = written(tmp_path)
    assert found.models[0].passed
    assert (found.planned, found.passed) == ([model, other], False)


def test_a_model_that_is_unavailable_fails_and_the_next_is_validated(
    invoke, model: str, other: str, tmp_path: Path
) -> None:
    result = invoke(broken={model: TargetUnavailable("It is too large.")})("--model", model, "--model", other)
    assert result.exit_code == 1
    assert f"{model}: not validated. It is too large." in result.stdout
    found = written(tmp_path)
    assert found.unavailable == {model: "It is too large."}
    assert [each.passed for each in found.models] == [True]
    assert not found.passed


def test_the_hardware_is_that_of_the_target_unless_the_user_says_otherwise(invoke, model: str, tmp_path: Path) -> None:
    call = invoke(Fake(devices="1 x TPU v6 lite"))
    for flags, hardware in (([], "1 x TPU v6 lite"), (["--hardware", "a TPU"], "a TPU")):
        assert call("--model", model, *flags).exit_code == 0
        assert written(tmp_path).environment.hardware == hardware
        (tmp_path / "validation.json").unlink()


@pytest.mark.parametrize(
    ("says", "flags", "computed", "message"),
    [
        ("float32", ["--dtype", "bfloat16"], None, "computes in float32, not in bfloat16; leave --dtype out"),
        ("float16", [], None, "computes in float16; there are thresholds for bfloat16 and float32"),
        ("auto", ["--dtype", "float32"], "float32", "passed"),
        ("auto", [], "bfloat16", "passed"),
        ("float32", [], "float32", "passed"),
    ],
)
def test_the_type_is_what_the_target_says(
    invoke, model: str, tmp_path: Path, says: str, flags: list[str], computed: str | None, message: str
) -> None:
    result = invoke(Fake(dtype=says))("--model", model, *flags)
    assert message in result.stdout
    assert result.exit_code == (computed is None)
    assert [each.dtype for each in written(tmp_path).models] == ([] if computed is None else [computed])


def test_one_model_of_two_that_fails_fails_the_command_and_is_named(
    invoke, model: str, other: str, tmp_path: Path
) -> None:
    result = invoke(Fake(leaks_place))("--model", model, "--model", other)
    assert result.exit_code == 1
    assert f"did not pass {REVERSED}" in result.stdout
    assert not written(tmp_path).passed


def test_a_missing_pytorch_fails_the_command_unless_it_is_waived(invoke, model: str, tmp_path: Path) -> None:
    assert invoke(reference=unavailable)("--model", model).exit_code == 1
    (tmp_path / "validation.json").unlink()
    assert invoke(reference=unavailable)("--model", model, "--without-pytorch", "none here").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Name a checkpoint with --model"),
        (["--model", "no/such/checkpoint"], "no/such/checkpoint"),
        (["--model", "random:no-such-shape"], "There is no shape"),
        (["--model", "x", "--option", "tp_size"], "is not NAME=VALUE"),
        (["--model", "x", "--model", "y", "--target", "mis=http://127.0.0.1:1"], "A server has one model"),
        (["--model", "x", "--speedup-items", "1,8"], "one of them at least 32"),
        (["--model", "x", "--speedup-items", "many"], "write numbers such as 1,8,32"),
        (["--model", "x", "--without-pytorch", " "], "say why"),
    ],
)
def test_mistakes_are_one_clear_message(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(main, ["validate", *arguments])
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.replace("│", "").split())
    assert "Traceback" not in result.output
