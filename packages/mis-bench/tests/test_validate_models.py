"""The gates on real engines: checkpoints of all families pass, and planted faults do not."""

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from mis_bench.artifacts.validation import ModelValidation
from mis_bench.targets.base import About, BlockingTarget, Reply
from mis_bench.targets.registry import make_target
from mis_bench.validation.cases import Cases, build_cases
from mis_bench.validation.run import validate
from mis_bench.validation.subject import Subject, open_subject
from mis_bench.validation.thresholds import Dtype
from mis_bench.workload import Workload

VOCABULARY = 2048
ALL = build_cases(VOCABULARY)
SMALL = replace(ALL, isolated=(*ALL.isolated[:2], ALL.isolated[-1]), compared=ALL.compared[:2])
FEW = replace(SMALL, isolated=ALL.isolated[:2], compared=ALL.compared[:1])
OPTIONS = {"chunked_prefill_size": "256", "skip_warmup": "true"}


class Faulty:
    """A target whose requests or scores are changed on the way."""

    def __init__(
        self,
        target: BlockingTarget,
        *,
        before: Callable[[Workload], Workload] = lambda workload: workload,
        after: Callable[[np.ndarray], np.ndarray] = lambda scores: scores,
    ) -> None:
        self.target, self.before, self.after = target, before, after

    def __getattr__(self, name: str) -> object:
        return getattr(self.target, name)

    def score(self, workload: Workload) -> Reply:
        reply = self.target.score(self.before(workload))
        return replace(reply, scores=self.after(reply.scores.copy()))


class Shifted:
    """PyTorch, with every item one position further from the query than it is."""

    def __init__(self, model: Path, dtype: str) -> None:
        from mis_testing.oracle import PointwiseOracle

        self.about = About("shifted", "transformers", str(model))
        self.oracle = PointwiseOracle(model, dtype)

    def score(self, workload: Workload) -> Reply:
        sequences = [[*workload.query, *item] for item in workload.items]
        begin = len(workload.query)
        positions = [[place + (place >= begin) for place in range(len(each))] for each in sequences]
        labels = workload.label_token_ids.tolist()
        return Reply(self.oracle.score(sequences, labels, position_ids=positions).astype(np.float64))

    def forget(self) -> None: ...

    def counts(self) -> dict[str, float]:
        return {}

    def close(self) -> None: ...


def run(
    subject: Subject, dtype: Dtype, cases: Cases = FEW, reference: Callable[[], BlockingTarget] | str = "not here"
) -> ModelValidation:
    return validate("tiny", subject, reference=reference, dtype=dtype, cases=cases, counts=[])


def failed(found: ModelValidation) -> set[str]:
    """Names of gates that were measured and failed; there are no others that did not pass."""
    assert not [gate for gate in found.gates if gate.status == "not run"]
    return {gate.name for gate in found.gates if not gate.passed}


@pytest.fixture(scope="module")
def model(checkpoint_factory) -> Path:
    return checkpoint_factory(vocab_size=VOCABULARY)


@pytest.fixture(scope="module")
def whole(model: Path) -> Iterator[Subject]:
    """An engine, and what makes a second one with a delimiter."""
    opened = open_subject("engine", model, OPTIONS | {"dtype": "bfloat16"}, 600)
    yield opened
    opened.close()


@pytest.fixture
def subject(whole: Subject) -> Subject:
    """The engine alone; the delimiter goes to the end of the query."""
    return replace(whole, delimited=None)


def pytorch(model: Path, dtype: str) -> Callable[[], BlockingTarget]:
    return partial(make_target, "transformers-serial", model=model, options={"dtype": dtype})


@pytest.mark.parity
def test_qwen3_passes_every_gate(whole: Subject, model: Path) -> None:
    found = run(whole, "bfloat16", SMALL, pytorch(model, "bfloat16"))
    assert failed(found) == set(), [gate for gate in found.gates if not gate.passed]
    assert not any(gate.waived for gate in found.gates)
    assert found.isolation.other_requests_max_abs_diff == 0.0


@pytest.mark.parity
@pytest.mark.parametrize(
    ("family", "dtype"), [("qwen2", "float32"), pytest.param("llama", "bfloat16", marks=pytest.mark.full)]
)
def test_the_other_families_pass(checkpoint_factory, family: str, dtype: Dtype) -> None:
    model = checkpoint_factory(family, vocab_size=VOCABULARY)
    with closing(open_subject("engine", model, OPTIONS | {"dtype": dtype}, 600)) as opened:
        found = run(replace(opened, delimited=None), dtype, FEW, pytorch(model, dtype))
    assert failed(found) == set(), [gate for gate in found.gates if not gate.passed]


def leak(scores: np.ndarray) -> np.ndarray:
    scores[1:2] += 1e-7 * scores[:1]
    return scores


def test_a_leak_of_one_ten_millionth_fails_isolation(subject: Subject) -> None:
    found = failed(run(replace(subject, multi=Faulty(subject.multi, after=leak)), "bfloat16"))
    assert "isolation.same_length_mutation_max_abs_diff" in found
    assert "isolation.permutation_max_abs_diff" in found
    assert "equivalence_serial.max_abs_diff" not in found


def swap(scores: np.ndarray) -> np.ndarray:
    return np.concatenate([scores[1::-1], scores[2:]])


def test_two_swapped_items_fail_equivalence(subject: Subject) -> None:
    found = failed(run(replace(subject, multi=Faulty(subject.multi, after=swap)), "bfloat16"))
    assert "equivalence_serial.max_abs_diff" in found


def test_a_token_too_few_before_the_items_fails_equivalence(subject: Subject) -> None:
    def shorter(workload: Workload) -> Workload:
        return replace(workload, query=np.asarray(workload.query)[1:])

    found = failed(run(replace(subject, multi=Faulty(subject.multi, before=shorter)), "bfloat16"))
    assert "equivalence_serial.max_abs_diff" in found
    assert not any(name.startswith("isolation.") for name in found)


def test_a_wrong_delimiter_fails_its_gate(subject: Subject) -> None:
    def delimited(token: int) -> BlockingTarget:
        return Faulty(subject.multi, before=lambda case: replace(case, query=np.append(case.query, token ^ 1)))

    class Kept(Faulty):
        def close(self) -> None: ...

    found = failed(run(replace(subject, delimited=lambda token: Kept(delimited(token))), "bfloat16"))
    assert found
    assert all(name.startswith("equivalence_query_plus_delimiter.") for name in found)


@pytest.mark.parity
def test_positions_shifted_by_one_fail_parity(subject: Subject, model: Path) -> None:
    found = failed(run(subject, "bfloat16", reference=lambda: Shifted(model, "bfloat16")))
    assert {"max_abs_diff_jax_serial_vs_torch_serial", "max_abs_diff_jax_multi_vs_torch_serial"} <= found
    assert all(name.endswith("_vs_torch_serial") for name in found)


@pytest.mark.parity
def test_pytorch_with_another_checkpoint_fails_parity(subject: Subject, checkpoint_factory) -> None:
    other = checkpoint_factory(vocab_size=VOCABULARY, seed=1)
    found = failed(run(subject, "bfloat16", reference=pytorch(other, "bfloat16")))
    assert {"max_abs_diff_jax_serial_vs_torch_serial", "max_abs_diff_jax_multi_vs_torch_serial"} <= found


def test_a_server_passes_over_http(server, checkpoint: Path) -> None:
    vocab_size = json.loads((checkpoint / "config.json").read_text())["vocab_size"]
    cases = build_cases(vocab_size)
    few = replace(cases, isolated=cases.isolated[:1], compared=cases.compared[:2])
    with closing(open_subject(f"mis={server.base_url}", checkpoint, {}, 600)) as subject:
        found = run(subject, "bfloat16", few)
    assert failed(found) == set()
    assert found.isolation.other_requests_max_abs_diff == 0.0
    assert found.equivalence_query_plus_delimiter.max_abs_diff is not None
