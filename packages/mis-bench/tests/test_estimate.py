"""`mis-bench estimate`: its figures, its messages, and the whole with the TPU's compiler."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from click.testing import CliRunner

from mis_bench.cli import main
from mis_bench.estimate.pricing import EstimateError, estimate
from mis_bench.estimate.serving import EstimateRequest, ServingEstimate
from mis_core.aot.estimate import StepTimes
from mis_kernels.aot.ranges import Range


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--topology", "v9:1x1"], "There is no topology 'v9:1x1'; choose from v5e:1x1"),
        (["--model-shape", "gpt-9"], "There is no model 'gpt-9'"),
        (["--workload", "text-9-2-3"], "text-9-2-3 is text"),
        (["--workload", "loglikelihoods-9-2-3"], "asks for loglikelihoods; only scores are estimated"),
        (["--dp", "2"], "dp 2 x tp 1 needs 2 devices; v6e:1x1 has 1"),
        (["--workload", "nonsense"], "'nonsense' is not a workload"),
    ],
)
def test_what_cannot_be_estimated_is_one_line(arguments: list[str], message: str) -> None:
    done = CliRunner().invoke(main, ["estimate", *arguments])
    assert done.exit_code != 0
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_missing_compiler_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mis_bench.estimate.pricing.find_spec", lambda _: None)
    done = CliRunner().invoke(main, ["estimate"])
    assert (done.exit_code, done.stderr) == (1, "Error: An estimate needs the TPU's compiler: pip install libtpu.\n")


def asked(**fields: Any) -> ServingEstimate:
    """Estimate a small workload on one chip, unless told otherwise."""
    usual = {"topology": "v6e:1x1", "model": "qwen3-0.6b", "workload": "probe-512-100-20"}
    return estimate(EstimateRequest.model_validate(usual | fields))


@pytest.fixture(scope="module")
def one_chip() -> ServingEstimate:
    return asked(step_tokens=512, requests=2)


@pytest.mark.tpu_aot
def test_an_estimate_adds_up_and_stays_below_the_roofline(one_chip: ServingEstimate) -> None:
    assert sum(stage.milliseconds for stage in one_chip.stages) == pytest.approx(one_chip.milliseconds)
    assert one_chip.items_per_second == pytest.approx(100 / one_chip.milliseconds * 1e3)
    assert one_chip.worst_items_per_second < one_chip.items_per_second < one_chip.best_items_per_second
    assert 0.05 < one_chip.roofline_share < 1
    assert {"attention", "mlp", "norm and RoPE", "head"} <= {stage.name for stage in one_chip.stages}
    assert 1e9 < one_chip.memory_bytes < one_chip.memory_limit_bytes
    assert ServingEstimate.model_validate_json(one_chip.model_dump_json()) == one_chip


@pytest.mark.tpu_aot
@pytest.mark.parametrize(
    ("topology", "model", "options", "least", "most"),
    [
        pytest.param("v5e:1x1", "qwen3-0.6b", {}, 0.1, 0.6, id="slower chip", marks=pytest.mark.full),
        pytest.param("v7x:1x1x1", "qwen3-0.6b", {}, 0.5, 2.5, id="faster chip"),
        pytest.param("v6e:1x1", "qwen3-1.7b", {}, 0.2, 0.8, id="model", marks=pytest.mark.full),
        pytest.param("v6e:1x1", "qwen3.5-0.8b", {}, 0.005, 2.0, id="recurrent layers", marks=pytest.mark.full),
        pytest.param("v6e:2x2", "qwen3-0.6b", {"dp": 4}, 1.5, 4.0, id="dp", marks=pytest.mark.full),
        pytest.param("v6e:2x2", "qwen3-0.6b", {"tp": 4}, 0.5, 4.0, id="tp", marks=pytest.mark.full),
        pytest.param("v6e:1x1", "qwen3-0.6b", {"apply_softmax": True}, 1.01, 2.0, id="softmax", marks=pytest.mark.full),
    ],
)
def test_an_estimate_moves_with_chip_model_devices_and_request(
    one_chip: ServingEstimate, topology: str, model: str, options: dict[str, int], least: float, most: float
) -> None:
    found = asked(topology=topology, model=model, step_tokens=512, requests=2, **options)
    assert least < found.items_per_second / one_chip.items_per_second < most
    assert found.roofline_share < 1


@pytest.mark.tpu_aot
def test_what_the_compiler_refuses_is_an_error() -> None:
    with pytest.raises(EstimateError, match="does not divide"):
        asked(topology="v6e:2x4", model="qwen2.5-0.5b", tp=3, step_tokens=512)


@pytest.fixture
def priced(monkeypatch: pytest.MonkeyPatch) -> list[Sequence[Mapping[str, Any]]]:
    """Let steps have fixed prices, products in int8 half of those in bfloat16; return the requests."""
    asked: list[Sequence[Mapping[str, Any]]] = []

    def price(
        target: str, model: str, requests: Sequence[Mapping[str, Any]], *, quantization: str, **cut: int
    ) -> StepTimes:
        asked.append(requests)
        mlp = Range.of(0.05 if quantization == "int8" else 0.1)
        stages = {"mlp": mlp, "attention": Range(0.2, 0.3, 0.5)}
        states = {"state_slots": 126, "state_bytes": 20_000_000} if model.startswith("qwen3.5") else {}
        return StepTimes(steps=24, stages=stages, padded_share=0.02, memory_bytes=3 << 30, **states)

    monkeypatch.setattr("mis_bench.estimate.pricing.find_spec", lambda _: object())
    monkeypatch.setattr("mis_bench.estimate.pricing.price_requests", price)
    return asked


def test_figures_follow_from_the_prices_of_steps(priced: list[Sequence[Mapping[str, Any]]]) -> None:
    found = asked(workload="canonical-2000-500-20", requests=8)
    assert len({str(body["query"]) for body in priced[0]}) == 8  # no query is cached
    assert found.milliseconds == pytest.approx(50)
    assert found.items_per_second == pytest.approx(10_000)
    assert found.best_items_per_second == pytest.approx(4000 / 0.3)
    assert found.worst_items_per_second == pytest.approx(4000 / 0.6)
    assert [(stage.name, stage.milliseconds, stage.share) for stage in found.stages] == [
        ("attention", pytest.approx(37.5), pytest.approx(0.75)),
        ("mlp", pytest.approx(12.5), pytest.approx(0.25)),
    ]
    assert found.roofline_items_per_second == pytest.approx(29977.333029530975)
    assert "37.50 ms 75.0%  attention (25.00 to 62.50)" in str(found)
    assert "10,000 items/s expected, 6,667 at worst, 13,333 at best" in str(found)


def test_products_in_int8_are_priced_as_such(priced: list[Sequence[Mapping[str, Any]]]) -> None:
    done = CliRunner().invoke(main, ["estimate", "--workload", "canonical-2000-500-20", "--quantization", "int8"])
    assert "bfloat16, products in int8, full-vocabulary probabilities" in done.output
    assert "6.25 ms 14.3%  mlp" in done.output


def test_slots_for_recurrent_states_are_shown(priced: list[Sequence[Mapping[str, Any]]]) -> None:
    found = asked(model="qwen3.5-0.8b")
    assert (found.state_slots, found.state_bytes) == (126, 20_000_000)
    assert "       126 slots for recurrent states a device, 20.0 MB each" in str(found)
    assert "recurrent" not in str(asked())
