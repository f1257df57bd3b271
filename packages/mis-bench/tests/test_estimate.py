"""`mis-bench estimate`: reading a program, pricing it, and the whole with the TPU's compiler."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from mis_bench.cli import main
from mis_bench.estimate.run import Estimate, EstimateError, estimate
from mis_bench.workload import build_workload
from mis_core.aot.hlo import read_operations
from mis_core.aot.roofline import least_flops
from mis_core.aot.traffic import plan_requests
from mis_core.models.published import PUBLISHED
from mis_core.runner.buckets import token_buckets
from mis_core.scheduler.plan import StepShape
from mis_kernels.aot.chips import CHIPS
from mis_kernels.aot.price import price_attention, price_program, stage_of

PROGRAM = Path(__file__).with_name("program.hlo").read_text()


def test_a_program_is_read_with_its_loops_branches_kernels_and_collectives() -> None:
    found = {operation.name: operation for operation in read_operations(PROGRAM)}
    assert set(found) == {"mul.1", "kernel.1", "y.1", "g.1", "r.1"}  # what a fusion calls is the fusion's
    assert (found["mul.1"].cycles, found["mul.1"].times) == (100, 27)
    assert (found["kernel.1"].kind, found["kernel.1"].cycles) == ("tpu_custom_call", None)
    assert (found["y.1"].branch, found["g.1"].branch, found["r.1"].branch) == (0, 1, None)
    assert (found["g.1"].bytes, found["g.1"].devices) == (32 * 1024 * 2, 4)


def test_a_loop_that_hides_its_trips_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"while\.1 does not say"):
        read_operations(PROGRAM.replace("constant(27)", "parameter(0)"))


def described(text: str) -> list[dict[str, object]]:
    names = ("name", "kind", "scope", "cycles", "times", "branch", "bytes", "devices")
    return [{name: getattr(operation, name) for name in names} for operation in read_operations(text)]


def test_a_step_pays_for_the_branch_it_takes() -> None:
    chip = CHIPS["v6e"]
    reads = price_program(described(PROGRAM), 1e9, chip, writes_pages=False)
    writes = price_program(described(PROGRAM), 1e9, chip, writes_pages=True)
    assert reads == pytest.approx({"mlp": 2700e-9, "embed": 1000e-9, "rest": 7e-9})
    assert writes == pytest.approx({"mlp": 2700e-9, "embed": 1000e-9, "exchange": 0.75 * 65536 / (chip.link_bytes / 2)})


def test_attention_is_priced_by_the_device_with_the_most_tiles() -> None:
    bundles = {"full": 100, "limited": 200, "masked": 300, "rest": 50}
    step = {"tiles": [[1, 0, 0], [1, 1, 1]], "rows": [512, 1024]}
    seconds = price_attention(step, bundles, kv_heads=2, block_tokens=512, clock_hz=1e9)
    assert seconds == pytest.approx(2 * (600 + 3 * 64 + 2 * 50) / 1e9)


def test_stages_are_those_of_the_named_scopes() -> None:
    assert stage_of("jit(step)/layers/while/body/closed_call/mlp/dot_general") == "mlp"
    assert stage_of("jit(step)/last_layer/attention/dot_general") == "projections and norms"
    assert stage_of("jit(step)/layers/while/body/attention/write_pages/add") == "write_pages"
    assert stage_of("") == "rest"


@pytest.mark.parametrize("count", [1, 4, 8, 16])
def test_requests_that_share_steps_are_not_padded_more_than_one_alone(count: int) -> None:
    shape = StepShape(2048, 256, 8, 40, alignment=512)
    requests = [build_workload().another(number).request for number in range(count)]
    plans = plan_requests(requests, shape, pages=(count + 2) * 40)
    rows = sum(next(size for size in token_buckets(2048) if size >= plan.rows) for plan in plans)
    assert sum(plan.new_tokens for plan in plans) == count * 12_000
    assert 1 - count * 12_000 / rows < 0.03


def test_the_roofline_counts_a_canonical_request() -> None:
    # 12,000 tokens through 440 million weights of the layers, and attention: between 15 and 17 TFLOP.
    flops = least_flops(PUBLISHED["qwen3-0.6b"], build_workload().request, normalised=False)
    assert 14e12 < flops < 17e12


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--topology", "v9:1x1"], "There is no topology 'v9:1x1'; choose from v5e:1x1"),
        (["--model-shape", "gpt-9"], "There is no model 'gpt-9'"),
        (["--workload", "text-9-2-3"], "text-9-2-3 is text"),
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
    monkeypatch.setattr("mis_bench.estimate.run.find_spec", lambda _: None)
    done = CliRunner().invoke(main, ["estimate"])
    assert (done.exit_code, done.stderr) == (1, "Error: An estimate needs the TPU's compiler: pip install libtpu.\n")


SMALL = "probe-512-100-20"


@pytest.fixture(scope="module")
def one_chip() -> Estimate:
    return estimate("v6e:1x1", "qwen3-0.6b", SMALL, step_tokens=512, requests=2)


@pytest.mark.tpu_aot
def test_an_estimate_adds_up_and_stays_below_the_roofline(one_chip: Estimate) -> None:
    assert sum(stage.milliseconds for stage in one_chip.stages) == pytest.approx(one_chip.milliseconds)
    assert one_chip.items_per_second == pytest.approx(100 / one_chip.milliseconds * 1e3)
    assert 0.05 < one_chip.roofline_share < 1
    assert {"attention", "mlp", "norm and RoPE", "head"} <= {stage.name for stage in one_chip.stages}
    assert 1e9 < one_chip.memory_bytes < one_chip.memory_limit_bytes
    assert Estimate.model_validate_json(one_chip.model_dump_json()) == one_chip


@pytest.mark.tpu_aot
@pytest.mark.parametrize(
    ("topology", "model", "options", "least", "most"),
    [
        ("v5e:1x1", "qwen3-0.6b", {}, 0.1, 0.6),
        ("v7x:1x1x1", "qwen3-0.6b", {}, 0.5, 2.5),
        ("v6e:1x1", "qwen3-1.7b", {}, 0.2, 0.8),
        ("v6e:2x2", "qwen3-0.6b", {"dp": 4}, 1.5, 4.0),
        ("v6e:2x2", "qwen3-0.6b", {"tp": 4}, 0.5, 4.0),
        ("v6e:1x1", "qwen3-0.6b", {"apply_softmax": True}, 1.01, 2.0),
    ],
    ids=["slower chip", "faster chip", "model", "dp", "tp", "softmax"],
)
def test_an_estimate_moves_with_chip_model_devices_and_request(
    one_chip: Estimate, topology: str, model: str, options: dict[str, int], least: float, most: float
) -> None:
    found = estimate(topology, model, SMALL, step_tokens=512, requests=2, **options)
    assert least < found.items_per_second / one_chip.items_per_second < most
    assert found.roofline_share < 1


@pytest.mark.tpu_aot
def test_what_the_compiler_refuses_is_an_error() -> None:
    with pytest.raises(EstimateError, match="does not divide"):
        estimate("v6e:2x4", "qwen2.5-0.5b", SMALL, tp=3, step_tokens=512)


def test_published_figures_are_those_of_the_same_cut_over_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = {
        "programs": {"512": {"operations": [], "argument_bytes": 1, "temporary_bytes": 1}},
        "steps": [{"size": 512, "normaliser_calls": 0, "new_tokens": 512}],
    }
    monkeypatch.setattr("mis_bench.estimate.run._compile", lambda *_: {"heads": [1, 1, 1]} | compiled)
    monkeypatch.setattr("mis_bench.estimate.run._schedules", lambda *_: {})
    monkeypatch.setattr("mis_bench.estimate.run._price", lambda *_: {"mlp": 1.0})
    for cut, published in (({"tp": 4}, "141 items/s"), ({"dp": 4}, None), ({"dp": 2, "tp": 2}, None)):
        found = estimate("v6e:2x2", "qwen3-0.6b", "canonical-2000-500-20", **cut).published
        assert (found or "").startswith(published or "")
        assert (found is None) == (published is None)
    assert estimate("v6e:1x1", "qwen3-0.6b", "canonical-2000-500-20").published
