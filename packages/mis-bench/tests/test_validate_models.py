"""The gates on real engines: checkpoints of all families pass, and planted faults do not."""

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from mis_bench.targets import registry
from mis_bench.targets.spec import TargetSpec
from mis_bench.targets.target import About, Layout, Opener, Reply, TargetReply
from mis_bench.validation.cases import Cases, build_cases
from mis_bench.validation.gates import Dtype, ModelValidation
from mis_bench.validation.run import ValidatedTarget, validate
from mis_bench.workload import Workload

VOCABULARY = 2048
ALL = build_cases(VOCABULARY)
SMALL = replace(ALL, isolated=(*ALL.isolated[:2], ALL.isolated[-1]), compared=ALL.compared[:2])
FEW = replace(
    SMALL, isolated=(ALL.isolated[0], ALL.compared[2]), compared=ALL.compared[:1]
)  # of steps of 256 tokens, two
GENUINE = registry.opener
OPTIONS = {"chunked_prefill_size": "256", "skip_warmup": "true"}


class Faulty:
    """A target whose requests or scores are changed on the way, but those of serial scoring, and what opens it."""

    def __init__(
        self,
        opener: Opener,
        before: Callable[[Workload], Workload] = lambda workload: workload,
        after: Callable[[np.ndarray], np.ndarray] = lambda scores: scores,
    ) -> None:
        self.opener, self.before, self.after = opener, before, after
        self.forgets, self.check = opener.forgets, opener.check

    async def open(self) -> "Faulty":
        self.target = await self.opener.open()
        self.about, self.forget, self.counts = self.target.about, self.target.forget, self.target.counts
        self.close = self.target.close
        return self

    def prepare(self, workload: Workload, layout: Layout = {}) -> tuple[object, bool]:  # noqa: B006
        is_serial = "scoring_algorithm" in layout
        return self.target.prepare(workload if is_serial else self.before(workload), layout), is_serial

    async def call(self, request: tuple[object, bool]) -> TargetReply:
        prepared, is_serial = request
        answer = await self.target.call(prepared)
        scores = answer.reply.scores if is_serial else self.after(answer.reply.scores.copy())
        return replace(answer, reply=replace(answer.reply, scores=scores))


class Delimited(Faulty):
    """The open engine, with a delimiter at the end of every query: a second engine would take long to compile."""

    def __init__(self, engine: Faulty, token: int) -> None:
        super().__init__(engine, before=lambda case: replace(case, query=np.append(case.query, token)))

    async def open(self) -> "Delimited":
        assert isinstance(self.opener, Faulty)
        self.target = self.opener.target
        return self

    async def close(self) -> None: ...


class Shifted:
    """PyTorch, with every item one position further from the query than it is, and what opens it."""

    forgets = True

    def __init__(self, model: Path, dtype: Dtype) -> None:
        self.model, self.dtype, self.about = model, dtype, About("shifted", "transformers", str(model))

    async def check(self) -> None: ...

    async def open(self) -> "Shifted":
        from mis_testing.oracle import PointwiseOracle

        self.oracle = PointwiseOracle(self.model, self.dtype)
        return self

    def prepare(self, workload: Workload, layout: Layout = {}) -> Workload:  # noqa: B006
        return workload

    async def call(self, workload: Workload) -> TargetReply:
        sequences = [[*workload.query, *item] for item in workload.items]
        begin = len(workload.query)
        positions = [[place + (place >= begin) for place in range(len(each))] for each in sequences]
        began = time.perf_counter()
        scores = self.oracle.score(sequences, workload.label_token_ids.tolist(), position_ids=positions)
        return TargetReply(Reply(scores.astype(np.float64)), began, time.perf_counter())

    async def forget(self) -> None: ...

    async def close(self) -> None: ...


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch):
    """`run(model, ...)`: validate, without PyTorch unless something opens it."""

    def validated(
        model: Path,
        dtype: Dtype = "bfloat16",
        cases: Cases = FEW,
        *,
        spec: str = "engine",
        change: Callable[[Opener], Faulty] = Faulty,
        delimited: Callable[[Faulty, int], Opener] | None = Delimited,
        reference: Callable[[Dtype], Opener] | None = None,
    ) -> ModelValidation:
        opened: list[Faulty] = []

        def opener(target: TargetSpec, *, model: Path, **options: float) -> Opener:
            token = target.options.get("multi_item_scoring_delimiter")
            if target.spec == "transformers-serial":
                assert reference is not None
                return reference(target.options["dtype"])
            if token and delimited:
                return delimited(opened[0], int(token))
            opened.append(change(GENUINE(target, model=model, **options)))
            return opened[-1]

        monkeypatch.setattr(registry, "opener", opener)
        options = {**OPTIONS, "dtype": dtype} if spec == "engine" else {}
        subject = ValidatedTarget("tiny", spec, options, model, waiver=None if reference else "not here", timeout_s=600)
        return asyncio.run(validate(subject, cases, []))

    return validated


def pytorch(model: Path) -> Callable[[Dtype], Opener]:
    """PyTorch, by the type it computes in."""
    return lambda dtype: GENUINE(TargetSpec("pytorch", "transformers-serial", {"dtype": dtype}), model=model)


def failed(found: ModelValidation) -> set[str]:
    """Names of gates that were measured and failed; all others passed."""
    assert not [gate for gate in found.gates if gate.status == "not run"]
    return {gate.name for gate in found.gates if gate.status == "failed"}


def measured(found: ModelValidation, name: str) -> float | None:
    return next(gate.measured for gate in found.gates if gate.name == name)


@pytest.fixture(scope="module")
def model(checkpoint_factory) -> Path:
    return checkpoint_factory(vocab_size=VOCABULARY)


@pytest.mark.parity
@pytest.mark.parametrize(
    ("cases", "delimited"),
    [(FEW, Delimited), pytest.param(SMALL, None, marks=pytest.mark.full)],
    ids=["few", "more, and an engine with a delimiter"],
)
def test_qwen3_passes_every_gate(run, model: Path, cases: Cases, delimited: type[Delimited] | None) -> None:
    found = run(model, cases=cases, delimited=delimited, reference=pytorch(model))
    assert failed(found) == set(), found.gates
    assert not any(gate.status == "waived" for gate in found.gates)
    assert measured(found, "isolation.other_requests_max_abs_diff") == 0.0


@pytest.mark.parity
@pytest.mark.parametrize(
    ("family", "dtype"),
    [
        pytest.param("qwen2", "float32", marks=pytest.mark.full),
        pytest.param("llama", "bfloat16", marks=pytest.mark.full),
        pytest.param("mistral", "bfloat16", marks=pytest.mark.full),
        pytest.param("smollm3", "bfloat16", marks=pytest.mark.full),
    ],
)
def test_the_other_families_pass(run, checkpoint_factory, family: str, dtype: Dtype) -> None:
    model = checkpoint_factory(family, vocab_size=VOCABULARY)
    # The largest of few differences in bfloat16 says little: they are judged on all of them.
    cases = FEW if dtype == "float32" else replace(FEW, compared=ALL.compared)
    assert failed(run(model, dtype, cases, reference=pytorch(model))) == set()


def faulty(**changes: Callable) -> dict[str, object]:
    return {"change": lambda opener: Faulty(opener, **changes)}


def leak(scores: np.ndarray) -> np.ndarray:
    scores[1:2] += 1e-7 * scores[:1]
    return scores


def swap(scores: np.ndarray) -> np.ndarray:
    return np.concatenate([scores[1::-1], scores[2:]])


def shorter(workload: Workload) -> Workload:
    return replace(workload, query=np.asarray(workload.query)[1:])


def another(engine: Faulty, token: int) -> Opener:
    return Delimited(engine, token ^ 1)


MUTATED, SERIAL = "isolation.same_length_mutation_max_abs_diff", "equivalence_serial.max_abs_diff"
TORCH = {"max_abs_diff_jax_serial_vs_torch_serial", "max_abs_diff_jax_multi_vs_torch_serial"}


@pytest.mark.parametrize(
    ("fault", "fails", "passes"),
    [
        (faulty(after=leak), {MUTATED, "isolation.permutation_max_abs_diff"}, SERIAL),
        pytest.param(faulty(after=swap), {SERIAL}, "max_abs_diff_jax_serial", marks=pytest.mark.full),
        pytest.param(faulty(before=shorter), {SERIAL}, "isolation", marks=pytest.mark.full),
        ({"delimited": another}, {"equivalence_query_plus_delimiter.max_abs_diff"}, "isolation"),
        pytest.param({"reference": Shifted}, TORCH, "isolation", marks=pytest.mark.parity),
    ],
    ids=["a leak of one ten millionth", "two swapped items", "a token less", "a wrong delimiter", "shifted positions"],
)
def test_a_planted_fault_fails_its_gates(
    run, model: Path, fault: dict[str, Callable], fails: set[str], passes: str
) -> None:
    if "reference" in fault:
        fault = {"reference": partial(fault["reference"], model)}
    found = failed(run(model, **fault))
    assert fails <= found
    assert not any(name.startswith(passes) for name in found)


@pytest.mark.full
@pytest.mark.parity
def test_pytorch_with_another_checkpoint_fails_parity(run, model: Path, checkpoint_factory) -> None:
    other = checkpoint_factory(vocab_size=VOCABULARY, seed=1)
    assert failed(run(model, reference=pytorch(other))) >= TORCH


def test_a_server_passes_over_http(run, server, checkpoint: Path) -> None:
    cases = build_cases(json.loads((checkpoint / "config.json").read_text())["vocab_size"])
    few = replace(cases, isolated=cases.isolated[:1], compared=cases.compared[:2])
    found = run(checkpoint, cases=few, spec=f"mis={server.base_url}")
    assert failed(found) == set()
    assert measured(found, "isolation.other_requests_max_abs_diff") == 0.0
    assert measured(found, "equivalence_query_plus_delimiter.max_abs_diff") is not None
