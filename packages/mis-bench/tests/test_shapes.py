"""`mis-bench run --profile shapes` on targets without a model."""

from collections.abc import Callable
from pathlib import Path

import pytest

from bench_fakes import CALL_S, Done, Fakes, FakeTarget, by_alias, options_of
from mis_bench.presets import shapes
from mis_core.aot.roofline import least_flops
from mis_core.models.config import read_model_config

Bench = Callable[..., Done]
SIX = [
    ("canonical-2000-500-20", 28),
    ("candidates-200-16-30", 28),
    ("posts-100-50-400", 16),
    ("items-300-10-20", 28),
    ("titles-60-1000-30", 28),
    ("questions-3000-50-20", 28),
]
"""Workloads, and the layers of their models, as the runbook has them."""


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch, checkpoint_factory: Callable[..., Path]) -> dict[str, Path]:
    """Tiny checkpoints for the models of the shapes."""
    layers = {shapes.MODEL: 3, shapes.PRUNED: 2}
    found = {name: checkpoint_factory(num_hidden_layers=count) for name, count in layers.items()}
    monkeypatch.setattr("mis_bench.checkpoints.resolve_checkpoint", lambda spec: found[spec])
    return found


def test_each_of_the_six_shapes_is_asked_of_its_model(bench: Bench, fakes: Fakes, models: dict[str, Path]) -> None:
    done = bench("run", "--profile", "shapes")
    assert done.status == 0, done.said
    plan = done.results.plan
    assert [case.name for case in plan.cases] == [name for name, _ in SIX]
    for case, (name, layers) in zip(plan.cases, SIX, strict=True):
        model = plan.target(case.target).model
        assert (case.workload.name, case.cache) == (name, "cold")
        assert model == {28: "random:qwen3-0.6b", 16: "random:qwen3-0.6b-16-layers"}[layers]
        config = read_model_config(models[model])
        request = next(each for each in fakes.opened for each in each.sent if each.name == name).request
        assert case.flops == least_flops(config, request, normalised=True)
    assert plan.rounds == 3
    assert [row.calls for row in done.summary.rows] == [3] * 6


def test_targets_take_turns_in_every_shape(bench: Bench, fakes: Fakes, models: dict[str, Path]) -> None:
    def prepare(target: FakeTarget) -> None:
        target.seconds = lambda _: CALL_S * (2 if target.spec.spec == "transformers-shared" else 1)

    fakes.prepare = prepare
    done = bench("run", "--profile", "shapes", "--runs", "1", *options_of(["engine", "transformers-shared"]))
    assert done.status == 0, done.said
    assert len(done.summary.rows) == 12
    ratios = {row.workload: row.ratio.value for row in done.summary.rows if row.ratio}
    assert ratios == {name: pytest.approx(0.5) for name, _ in SIX}


def test_a_given_model_is_asked_all_six(bench: Bench, fakes: Fakes, checkpoint: Path) -> None:
    done = bench("run", "--profile", "shapes", "--runs", "1", "--model", str(checkpoint))
    assert done.status == 0, done.said
    assert [row.name for row in done.summary.rows] == [name for name, _ in SIX]
    assert len(by_alias(fakes)) == 1


def test_shapes_take_no_workload_and_no_load(bench: Bench) -> None:
    for more in (("--workload", "probe-9-3-4"), ("--concurrency", "2"), ("--rate", "1")):
        done = bench("run", "--profile", "shapes", *more)
        assert done.status == 2
        assert "--profile shapes excludes --workload, --concurrency and --rate." in done.said.replace("│ ", "")
