"""The gates on real engines: checkpoints of all families pass, and planted faults do not."""

import asyncio
import json
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mis_bench.targets.base import About, Answer, Layout, Reply, Target
from mis_bench.targets.blocking import Blocking
from mis_bench.targets.registry import opener
from mis_bench.targets.spec import TargetSpec
from mis_bench.validation.ask import Scorer
from mis_bench.validation.cases import Cases, build_cases
from mis_bench.validation.gates import ModelValidation
from mis_bench.validation.run import Subject, validate
from mis_bench.validation.thresholds import Dtype
from mis_bench.workload import Workload

VOCABULARY = 2048
ALL = build_cases(VOCABULARY)
SMALL = replace(ALL, isolated=(*ALL.isolated[:2], ALL.isolated[-1]), compared=ALL.compared[:2])
FEW = replace(SMALL, isolated=ALL.isolated[:2], compared=ALL.compared[:1])
OPTIONS = {"chunked_prefill_size": "256", "skip_warmup": "true"}

Change = Callable[[Subject, Path], Subject]


class Faulty:
    """A target whose requests or scores are changed on the way."""

    def __init__(
        self,
        target: Target,
        *,
        before: Callable[[Workload], Workload] = lambda workload: workload,
        after: Callable[[np.ndarray], np.ndarray] = lambda scores: scores,
    ) -> None:
        self.target, self.before, self.after = target, before, after

    def __getattr__(self, name: str) -> object:
        return getattr(self.target, name)

    def prepare(self, workload: Workload, layout: Layout = {}) -> object:  # noqa: B006
        return self.target.prepare(self.before(workload), layout)

    async def call(self, request: object) -> Answer:
        answer = await self.target.call(request)
        return replace(answer, reply=replace(answer.reply, scores=self.after(answer.reply.scores.copy())))


class Shifted:
    """PyTorch, with every item one position further from the query than it is."""

    def __init__(self, model: Path, dtype: str) -> None:
        from mis_testing.oracle import PointwiseOracle

        self.about = About("shifted", "transformers", str(model))
        self.oracle = PointwiseOracle(model, dtype)

    def score(self, workload: Workload, layout: Layout) -> Reply:
        sequences = [[*workload.query, *item] for item in workload.items]
        begin = len(workload.query)
        positions = [[place + (place >= begin) for place in range(len(each))] for each in sequences]
        labels = workload.label_token_ids.tolist()
        return Reply(self.oracle.score(sequences, labels, position_ids=positions).astype(np.float64))

    def close(self) -> None: ...


async def opened(spec: str, model: Path, options: dict[str, str]) -> Target:
    return await opener(TargetSpec(spec, spec, options), model=model).open()


def run(
    model: Path,
    dtype: Dtype = "bfloat16",
    cases: Cases = FEW,
    *,
    change: Change = lambda subject, _: subject,
    spec: str = "engine",
    torch: Path | None = None,
) -> ModelValidation:
    """Validate a model, changed on the way; without PyTorch unless there is a checkpoint for it."""

    async def validated() -> ModelValidation:
        is_engine = spec == "engine"
        options = {**OPTIONS, "dtype": dtype} if is_engine else {}
        async with AsyncExitStack() as stack:
            target = await opened(spec, model, options)
            stack.push_async_callback(target.close)
            subject = Subject(
                multi=Scorer(target, 600),
                serial=Scorer(target, 600, {"scoring_algorithm": "serial"} if is_engine else {}, splits=not is_engine),
                delimited=None,
                reference="not here"
                if torch is None
                else lambda: opened("transformers-serial", torch, {"dtype": dtype}),
            )
            return await validate("tiny", change(subject, model), dtype=dtype, cases=cases, counts=[])

    return asyncio.run(validated())


def failed(found: ModelValidation) -> set[str]:
    """Names of gates that were measured and failed; all others but the speed-up's passed."""
    gates = [gate for gate in found.gates if not gate.name.startswith("performance.")]
    assert not [gate for gate in gates if gate.status == "not run"]
    return {gate.name for gate in gates if gate.status == "failed"}


def measured(found: ModelValidation, name: str) -> float | None:
    return next(gate.measured for gate in found.gates if gate.name == name)


@pytest.fixture(scope="module")
def model(checkpoint_factory) -> Path:
    return checkpoint_factory(vocab_size=VOCABULARY)


def with_delimiter(subject: Subject, model: Path) -> Subject:
    def delimited(token: int) -> object:
        return opened("engine", model, {**OPTIONS, "multi_item_scoring_delimiter": str(token)})

    return replace(subject, delimited=delimited)


@pytest.mark.parity
def test_qwen3_passes_every_gate(model: Path) -> None:
    found = run(model, cases=SMALL, change=with_delimiter, torch=model)
    assert failed(found) == set(), found.gates
    assert not any(gate.status == "waived" for gate in found.gates)
    assert measured(found, "isolation.other_requests_max_abs_diff") == 0.0


@pytest.mark.parity
@pytest.mark.parametrize(
    ("family", "dtype"), [("qwen2", "float32"), pytest.param("llama", "bfloat16", marks=pytest.mark.full)]
)
def test_the_other_families_pass(checkpoint_factory, family: str, dtype: Dtype) -> None:
    model = checkpoint_factory(family, vocab_size=VOCABULARY)
    assert failed(run(model, dtype, torch=model)) == set()


def faulty(**changes: Callable) -> Change:
    def change(subject: Subject, _: Path) -> Subject:
        return replace(subject, multi=replace(subject.multi, target=Faulty(subject.multi.target, **changes)))

    return change


def leak(scores: np.ndarray) -> np.ndarray:
    scores[1:2] += 1e-7 * scores[:1]
    return scores


def swap(scores: np.ndarray) -> np.ndarray:
    return np.concatenate([scores[1::-1], scores[2:]])


def shorter(workload: Workload) -> Workload:
    return replace(workload, query=np.asarray(workload.query)[1:])


def wrong_delimiter(subject: Subject, _: Path) -> Subject:
    class Kept(Faulty):
        async def close(self) -> None: ...

    async def delimited(token: int) -> Target:
        return Kept(subject.multi.target, before=lambda case: replace(case, query=np.append(case.query, token ^ 1)))

    return replace(subject, delimited=delimited)


def shifted(subject: Subject, model: Path) -> Subject:
    async def reference() -> Target:
        return Blocking(Shifted(model, "bfloat16"))

    return replace(subject, reference=reference)


MUTATED, SERIAL = "isolation.same_length_mutation_max_abs_diff", "equivalence_serial.max_abs_diff"
TORCH = {"max_abs_diff_jax_serial_vs_torch_serial", "max_abs_diff_jax_multi_vs_torch_serial"}


@pytest.mark.parametrize(
    ("change", "fails", "passes"),
    [
        (faulty(after=leak), {MUTATED, "isolation.permutation_max_abs_diff"}, SERIAL),
        (faulty(after=swap), {SERIAL}, "max_abs_diff_jax_serial"),
        (faulty(before=shorter), {SERIAL}, "isolation"),
        (wrong_delimiter, {"equivalence_query_plus_delimiter.max_abs_diff"}, "isolation"),
        pytest.param(shifted, TORCH, "isolation", marks=pytest.mark.parity),
    ],
    ids=["a leak of one ten millionth", "two swapped items", "a token less", "a wrong delimiter", "shifted positions"],
)
def test_a_planted_fault_fails_its_gates(model: Path, change: Change, fails: set[str], passes: str) -> None:
    found = failed(run(model, change=change))
    assert fails <= found
    assert not any(name.startswith(passes) for name in found)


@pytest.mark.parity
def test_pytorch_with_another_checkpoint_fails_parity(model: Path, checkpoint_factory) -> None:
    assert failed(run(model, torch=checkpoint_factory(vocab_size=VOCABULARY, seed=1))) >= TORCH


def test_a_server_passes_over_http(server, checkpoint: Path) -> None:
    cases = build_cases(json.loads((checkpoint / "config.json").read_text())["vocab_size"])
    few = replace(cases, isolated=cases.isolated[:1], compared=cases.compared[:2])
    found = run(checkpoint, cases=few, spec=f"mis={server.base_url}")
    assert failed(found) == set()
    assert measured(found, "isolation.other_requests_max_abs_diff") == 0.0
    assert measured(found, "equivalence_query_plus_delimiter.max_abs_diff") is not None
