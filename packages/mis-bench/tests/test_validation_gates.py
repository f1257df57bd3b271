"""Every gate passes on a scorer that does everything right, and fails on the fault that it is there to find."""

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from bench_fakes import Clock
from mis_bench.artifact import read_artifact
from mis_bench.cli import main
from mis_bench.manifest import MANIFEST, VIEW
from mis_bench.targets.spec import TargetSpec
from mis_bench.targets.target import CallFailed, TargetUnavailable
from mis_bench.validation.cases import build_cases
from mis_bench.validation.gates import FIGURES, VALIDATION, GatedFigure, ModelValidation, Validation
from mis_bench.validation.isolation import KINDS
from mis_bench.validation.run import ValidatedTarget, num_steps, validate
from mis_bench.workload import Workload
from page_parts import tables_of_markdown
from validation_fakes import SERIAL_S, Fake, Fault, drifts, rounds

CASES = build_cases(2048)


def unavailable(*_: object) -> Fake:
    raise TargetUnavailable("PyTorch is not installed.")


@pytest.fixture
def opening(monkeypatch: pytest.MonkeyPatch, clock: Clock):
    """`opening(target, reference=..., rounded=..., delimited=..., broken=...)`: targets are fakes, and time is virtual.

    `reference` is PyTorch in float32, `rounded` in bfloat16.
    """

    def set_up(
        target: Fake | None = None,
        *,
        reference: Callable[[], Fake] = Fake,
        rounded: Callable[[], Fake] = lambda: Fake(rounds, is_serial_faulty=True),
        delimited: Callable[[int], Fake] = lambda token: Fake(delimiter=token),
        broken: dict[str, BaseException] | None = None,
    ) -> None:
        def opener(spec: TargetSpec, *, model: Path | None, **_: object) -> Fake:
            if spec.spec == "transformers-serial":
                return rounded() if spec.options["dtype"] == "bfloat16" else reference()
            if error := (broken or {}).get(str(model)):
                raise error
            token = spec.options.get("multi_item_scoring_delimiter")
            return delimited(int(token)) if token else target or Fake()

        monkeypatch.setattr("mis_bench.targets.registry.opener", opener)

    return set_up


@pytest.fixture
def run(opening):
    """`run(target, ...)`: validate fakes; `spec`, `waiver` and `counts` are the command's, the rest is `opening`'s."""

    def validated(
        target: Fake | None = None,
        *,
        spec: str = "engine",
        waiver: str | None = None,
        counts: Sequence[int] = (),
        on_step: Callable[[str, ModelValidation], None] = lambda *_: None,
        **openings: Callable[..., Fake],
    ) -> ModelValidation:
        opening(target, **openings)
        subject = ValidatedTarget("fake", spec, {}, None, waiver=waiver)
        return asyncio.run(validate(subject, CASES, counts, on_step))

    return validated


def gate_of(found: ModelValidation, name: str) -> GatedFigure:
    return next(gate for gate in found.gates if gate.name == name)


def failed(found: ModelValidation) -> set[str]:
    """Names of gates that did not pass."""
    return {gate.name for gate in found.gates if gate.status in ("failed", "not run")}


@pytest.mark.parametrize("spec", ["engine", "mis=http://localhost"])
def test_a_faultless_scorer_passes_every_gate_and_is_closed(run, spec: str) -> None:
    told: dict[str, ModelValidation] = {}
    target = Fake()
    found = run(target, spec=spec, counts=[1, 32], on_step=told.__setitem__)
    assert found.passed
    assert target.is_closed
    assert len(told) == num_steps([1, 32]) == len(KINDS) + 5
    kept = [len(each.gates) for each in told.values()]
    assert kept[: len(KINDS)] == list(range(len(KINDS)))
    assert kept == sorted(kept)
    assert not any(each.passed for each in told.values())
    measured = {gate.name: gate.measured for gate in found.gates}
    assert measured[MUTATION] == measured[LENGTH] == 0.0
    assert all(value < 1e-12 for name, value in measured.items() if "serial.max_abs" in name or "torch" in name)


@pytest.mark.parametrize(
    ("dtype", "waiver", "serial", "mean", "torch"),
    [
        ("bfloat16", "none here", 0.02, 0.01, 0.02),
        ("float32", None, 1e-5, 1e-5, 1e-4),
        ("int8", "none here", 0.08, 0.03, 0.08),
    ],
)
def test_the_gates_are_those_of_the_runbook(
    run, dtype: str, waiver: str | None, serial: float, mean: float, torch: float
) -> None:
    fake = Fake(quantization="int8") if dtype == "int8" else Fake(dtype=dtype)
    found = run(fake, waiver=waiver, counts=[8, 32])
    gates = {gate.name: (gate.rule, gate.threshold) for gate in found.gates}
    assert len(gates) == len(KINDS) + 2 + 4 * 3 + 1
    assert gates[MUTATION] == gates[OTHERS] == ("at most", 0.0)
    assert gates["sensitivity.mutated_item_min_abs_diff"] == ("above", 0.0)
    assert gates["sensitivity.swapped_items_mean_abs_diff"] == ("above", mean)
    for name in ("equivalence_serial.max_abs_diff", "equivalence_query_plus_delimiter.max_abs_diff"):
        assert gates[name] == ("at most", serial)
    assert gates["max_abs_diff_jax_multi_vs_torch_serial"] == ("at most", torch)
    assert gates["performance.32.speedup_vs_serial_p50"] == ("at least", 3.0)


def close_to(target: Fake) -> dict[str, Callable]:
    """A target and one behind a delimiter that have the same fault, alike in every layout."""
    return {"delimited": lambda token: Fake(target.fault, is_serial_faulty=True, delimiter=token)}


@pytest.mark.parametrize("size", [1.0, 1e-3])
def test_in_bfloat16_at_most_twice_pytorchs_own_rounding_passes(run, size: float) -> None:
    """However large it is: what rounding does is a matter of the model."""

    def scaled(share: float) -> Fake:
        return Fake(drifts(size * share), is_serial_faulty=True)

    def failures(share: float) -> set[str]:
        target = scaled(share)
        return failed(run(target, rounded=lambda: scaled(1), **close_to(target)))

    assert failures(1.9) == set()
    beyond = failures(2.2)
    assert {f"{figure}_jax_{kind}_vs_torch_serial" for figure in FIGURES for kind in ("serial", "multi")} <= beyond
    assert all(name.endswith("_vs_torch_serial") for name in beyond)  # it agrees with itself


@pytest.mark.parametrize(
    ("target", "dtype", "times"),
    [
        (Fake(), "bfloat16", 2),
        (Fake(quantization="int8"), "int8", 6),
        (Fake(dtype="float32", quantization="int8"), "int8", 6),
    ],
)
def test_thresholds_are_some_times_pytorchs_own_rounding(run, target: Fake, dtype: str, times: int) -> None:
    found = run(target)
    assert found.dtype == dtype
    own = gate_of(run(Fake(rounds, is_serial_faulty=True)), "max_abs_diff_jax_serial_vs_torch_serial")
    assert own.measured is not None
    assert 0 < own.measured < 0.01
    names = ("max_abs_diff_jax_multi_vs_torch_serial", "equivalence_serial.max_abs_diff", DELIMITER)
    assert {gate_of(found, name).threshold for name in names} == {times * own.measured}


def test_float32_asks_pytorch_for_no_bfloat16(run) -> None:
    assert run(Fake(dtype="float32"), rounded=unavailable).passed


def test_rounding_that_hides_the_items_fails_sensitivity(run) -> None:
    """Its rounding would allow anything."""
    assert failed(run(rounded=lambda: Fake(seed=1))) == {"sensitivity.swapped_items_mean_abs_diff"}


def test_gates_against_bfloat16_of_pytorch_do_not_run_without_it(run) -> None:
    found = run(rounded=unavailable)
    absent = [gate for gate in found.gates if gate.status == "not run"]
    assert {gate.detail for gate in absent} == {"PyTorch is not installed."}
    assert (len(absent), found.passed) == (6, False)
    assert gate_of(found, "equivalence_serial.max_abs_diff").threshold == 0.02


def leaks_content(_: Fake, workload: Workload, scores: np.ndarray) -> np.ndarray:
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
    return scores * (1 + 1e-12 * (fake.under_way > 1))


DELIMITER = "equivalence_query_plus_delimiter.max_abs_diff"
REPEATED, MUTATION, LENGTH, REVERSED, PERMUTED, DROPPED, DUPLICATED, PRECEDING, OTHERS = (
    f"isolation.{kind}_max_abs_diff" for kind in KINDS
)


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
def test_the_faintest_leak_fails_isolation_and_nothing_else(run, fault: Fault, gates: set[str]) -> None:
    found = failed(run(Fake(fault)))
    assert gates <= found
    assert all(name.startswith("isolation.") for name in found)


def test_a_failed_isolation_gate_names_the_case_and_the_item(run) -> None:
    gate = gate_of(run(Fake(leaks_content)), MUTATION)
    assert gate.measured is not None
    assert 0 < gate.measured < 1e-6
    assert gate.detail.endswith(", item 1")


def test_scores_that_ignore_the_items_are_isolated_but_fail(run) -> None:
    same = failed(run(Fake(lambda _, workload, __: np.full((workload.num_items, 2), 0.5))))
    assert "sensitivity.mutated_item_min_abs_diff" in same
    assert not any(name.startswith("isolation.") for name in same)


def test_flat_scores_fail_because_they_would_hide_a_fault(run) -> None:
    def flat(_: Fake, workload: Workload, scores: np.ndarray) -> np.ndarray:
        return 0.5 + 1e-3 * scores

    def made(delimiter: int | None = None) -> Fake:
        return Fake(flat, is_serial_faulty=True, delimiter=delimiter)

    found = failed(run(made(), reference=made, delimited=made))
    assert found == {"sensitivity.swapped_items_mean_abs_diff"}


def test_swapped_items_fail_equivalence_and_parity_of_the_target(run) -> None:
    def swaps(_: Fake, workload: Workload, scores: np.ndarray) -> np.ndarray:
        return np.roll(scores, 1, axis=0)

    found = failed(run(Fake(swaps), delimited=lambda token: Fake(swaps, delimiter=token)))
    assert {"equivalence_serial.max_abs_diff", "equivalence_serial.mean_abs_diff"} <= found
    assert {"max_abs_diff_jax_multi_vs_torch_serial", "equivalence_query_plus_delimiter.max_abs_diff"} <= found
    assert "max_abs_diff_jax_serial_vs_torch_serial" not in found


def test_a_fault_that_a_softmax_hides_fails_by_log_probability(run) -> None:
    def doubles(_: Fake, workload: Workload, scores: np.ndarray) -> np.ndarray:
        return scores if workload.apply_softmax else 2 * scores

    found = failed(run(Fake(doubles)))
    assert "equivalence_serial.max_logprob_diff" in found
    assert "equivalence_serial.max_abs_diff" not in found


def test_a_fault_of_the_softmax_alone_fails(run) -> None:
    def blurs(_: Fake, workload: Workload, scores: np.ndarray) -> np.ndarray:
        return 0.9 * scores if workload.apply_softmax else scores

    assert "equivalence_serial.max_abs_diff" in failed(run(Fake(blurs)))


def test_another_delimiter_fails_its_gate_only(run) -> None:
    found = failed(run(delimited=lambda token: Fake(delimiter=token + 1)))
    assert found
    assert all(name.startswith("equivalence_query_plus_delimiter.") for name in found)


def test_a_server_is_sent_the_delimiter_behind_the_query(run) -> None:
    def ignores_the_last_token(fake: Fake, workload: Workload, scores: np.ndarray) -> np.ndarray:
        return fake.scores(workload) if workload.query[-1] != CASES.free_token else np.full_like(scores, 0.5)

    found = failed(run(Fake(ignores_the_last_token), spec="mis=http://localhost"))
    assert "equivalence_query_plus_delimiter.max_abs_diff" in found
    assert all(name.startswith("equivalence_query_plus_delimiter.") for name in found)


def test_another_checkpoint_in_pytorch_fails_parity_only(run) -> None:
    found = failed(run(reference=lambda: Fake(seed=1), rounded=lambda: Fake(rounds, is_serial_faulty=True, seed=1)))
    assert {"max_abs_diff_jax_serial_vs_torch_serial", "max_abs_diff_jax_multi_vs_torch_serial"} <= found
    assert all(name.endswith("_vs_torch_serial") for name in found)


def test_gates_of_pytorch_did_not_run_without_it_unless_waived(run) -> None:
    found = run(reference=unavailable)
    absent = [gate for gate in found.gates if gate.status == "not run"]
    assert {gate.detail for gate in absent} == {"PyTorch is not installed."}
    assert (len(absent), found.passed) == (6, False)
    waived = run(reference=unavailable, waiver="no PyTorch on this TPU host")
    assert waived.passed
    assert [gate.detail for gate in waived.gates if gate.status == "waived"] == ["no PyTorch on this TPU host"] * 6


def test_gates_of_an_unavailable_delimited_target_did_not_run(run) -> None:
    found = failed(run(delimited=unavailable))
    assert len(found) == 3
    assert all(name.startswith("equivalence_query_plus_delimiter.") for name in found)


def test_a_target_that_cannot_forget_is_refused(run) -> None:
    target = Fake()
    target.forgets = False
    with pytest.raises(TargetUnavailable, match="cannot clear its prefix cache"):
        run(target)


def test_calls_that_fail_fail_the_gates_with_the_reason(run) -> None:
    def refuses(_: Fake, workload: Workload, scores: np.ndarray) -> np.ndarray:
        if len(scores) > 6:
            raise CallFailed("error", "the engine fell over")
        return scores

    found = run(Fake(refuses), counts=[32])
    assert not found.passed
    names = {MUTATION, OTHERS, "equivalence_serial.max_abs_diff", "performance.32.speedup_vs_serial_p50"}
    assert {(gate_of(found, name).status, gate_of(found, name).detail) for name in names} == {
        ("not run", "the engine fell over")
    }
    assert gate_of(found, "sensitivity.mutated_item_min_abs_diff").status in ("passed", "not run")


@pytest.mark.parametrize(("seconds", "status"), [(SERIAL_S / 5, "passed"), (SERIAL_S / 2, "failed")])
def test_speed_has_a_gate_from_32_items_on(run, seconds: float, status: str) -> None:
    found = run(Fake(seconds=seconds), counts=[1, 32])
    assert [gate.status for gate in found.gates if gate.name.startswith("performance.")] == [status]
    assert [(timing.items, len(timing.multi_ms), len(timing.serial_ms)) for timing in found.timings] == [
        (1, 3, 3), (32, 3, 3),
    ]  # fmt: skip
    assert found.timings[1].speedup == pytest.approx(SERIAL_S / seconds)


def test_gates_pass_at_their_thresholds_and_not_without_a_figure() -> None:
    def status(rule: str, measured: float | None) -> str:
        return GatedFigure.model_validate({"name": "a", "rule": rule, "threshold": 1.0, "measured": measured}).status

    assert [status(rule, 1.0) for rule in ("at most", "at least", "above")] == ["passed", "passed", "failed"]
    assert [status(rule, 2.0) for rule in ("at most", "at least", "above")] == ["failed", "passed", "passed"]
    assert status("at most", None) == "not run"


# The command line.


@pytest.fixture
def model(checkpoint_factory) -> str:
    return str(checkpoint_factory(vocab_size=2048))


@pytest.fixture
def other(checkpoint_factory) -> str:
    return str(checkpoint_factory(vocab_size=2048, seed=1))


@pytest.fixture
def invoke(opening, tmp_path: Path):
    """`invoke(target, ...)("--model", ...)`: `mis-bench validate` with fakes for targets."""

    def make(*targets: Fake, **openings):
        opening(*targets, **openings)
        return lambda *arguments: CliRunner().invoke(main, ["validate", "--output", str(tmp_path), *arguments])

    return make


def written(folder: Path) -> Validation:
    found = read_artifact(folder / "validation.json")
    assert isinstance(found, Validation)
    return found


def test_a_validation_without_gates_has_not_passed(run) -> None:
    empty = run().model_copy(update={"gates": []})
    assert not empty.passed
    assert empty.verdict == "fake: no gate was measured"


def remove_evidence(folder: Path) -> None:
    for name in (VALIDATION, MANIFEST):
        (folder / name).unlink()


def test_the_command_prints_a_table_and_writes_the_artifact(invoke, model: str, tmp_path: Path) -> None:
    result = invoke()("--model", model, "--speedup-items", "40")
    assert result.exit_code == 0, result.output
    assert f"{model}: passed every gate" in result.stdout
    assert "isolation.permutation_max_abs_diff" in result.stdout
    found = written(tmp_path)
    assert found.passed
    assert [timing.items for timing in found.models[0].timings] == [1, 8, 32, 40]


def test_an_interrupted_validation_has_not_passed(invoke, model: str, other: str, tmp_path: Path) -> None:
    result = invoke(broken={other: KeyboardInterrupt()})("--model", model, "--model", other)
    assert result.exit_code == 130
    found = written(tmp_path)
    assert found.models[0].passed
    assert (found.planned, found.passed) == ([model, other], False)


def test_gates_are_kept_from_before_an_interruption(invoke, model: str, tmp_path: Path) -> None:
    def interrupted() -> Fake:
        raise KeyboardInterrupt

    result = invoke(reference=interrupted)("--model", model)
    assert result.exit_code == 130
    assert result.stderr.splitlines()[-1] == f"Interrupted. What was measured until then is in {tmp_path}."
    found = written(tmp_path)
    (kept,) = found.models
    assert [gate.status for gate in kept.gates] == ["passed"] * (len(KINDS) + 1)
    assert (kept.passed, found.passed) == (False, False)
    assert kept.verdict == f"{model}: ended after {len(KINDS) + 1} gates"
    checked = CliRunner().invoke(main, ["validate-artifacts", str(tmp_path)])
    assert checked.exit_code == 1
    assert "interrupted" in checked.output
    page = tmp_path / "page.html"
    assert CliRunner().invoke(main, ["report", str(tmp_path), "--output", str(page)]).exit_code == 0
    assert "isolation.permutation_max_abs_diff" in page.read_text()
    assert "<td>interrupted" in page.read_text()


def test_an_unavailable_model_fails_and_the_next_is_validated(invoke, model: str, other: str, tmp_path: Path) -> None:
    result = invoke(broken={model: TargetUnavailable("It is too large.")})("--model", model, "--model", other)
    assert result.exit_code == 1
    assert f"{model}: not validated. It is too large." in result.stdout
    found = written(tmp_path)
    assert found.unavailable == {model: "It is too large."}
    assert [each.passed for each in found.models] == [True]
    assert not found.passed
    tables = tables_of_markdown((tmp_path / VIEW).read_text())
    rows = {row["model"]: row["verdict"] for row in tables["Gates by model"]}
    assert rows == {other: "passed", model: "not run: It is too large."}
    assert json.loads((tmp_path / MANIFEST).read_text())["derived"] == [VIEW]


def test_the_hardware_is_the_targets_unless_the_user_names_it(invoke, model: str, tmp_path: Path) -> None:
    call = invoke(Fake(devices="1 x TPU v6 lite"))
    for flags, hardware in (([], "1 x TPU v6 lite"), (["--hardware", "a TPU"], "a TPU")):
        assert call("--model", model, *flags).exit_code == 0
        assert written(tmp_path).environment.hardware == hardware
        remove_evidence(tmp_path)


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


def test_one_failed_model_of_two_is_named_and_fails_the_command(invoke, model: str, other: str, tmp_path: Path) -> None:
    result = invoke(Fake(leaks_place))("--model", model, "--model", other)
    assert result.exit_code == 1
    assert f"did not pass {REVERSED}" in result.stdout
    assert not written(tmp_path).passed


def test_a_missing_pytorch_fails_the_command_unless_it_is_waived(invoke, model: str, tmp_path: Path) -> None:
    assert invoke(reference=unavailable)("--model", model).exit_code == 1
    remove_evidence(tmp_path)
    assert invoke(reference=unavailable)("--model", model, "--without-pytorch", "none here").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Name a checkpoint with --model"),
        (["--model", "no/such/checkpoint"], "no/such/checkpoint"),
        (["--model", "random:no-such-shape"], "There is no shape"),
        (["--model", "x", "--option", "tp_size"], "is not NAME=VALUE"),
        (["--model", "x", "--model", "y", "--target", "mis=http://127.0.0.1:1"], "A server has one model"),
        (["--model", "x", "--speedup-items", "many"], "not a valid integer"),
    ],
)
def test_mistakes_are_one_clear_message(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(main, ["validate", *arguments])
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.replace("│", "").split())
    assert "Traceback" not in result.output
