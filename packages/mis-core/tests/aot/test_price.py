"""What an estimate is made of: reading a program, planning requests, pricing."""

from pathlib import Path

import pytest

from mis_core.aot.__main__ import DEVICES, MODELS, steps_of
from mis_core.aot.estimate import product_sizes
from mis_core.aot.hlo import COPY, EXCHANGES, HloOperation, read_operations
from mis_core.aot.price import price_program, stage_of
from mis_core.aot.roofline import layer_weights, least_flops, least_flops_by_part, least_glue_bytes
from mis_core.aot.traffic import plan_requests
from mis_core.models.parallel import spread_heads
from mis_core.models.published import PUBLISHED
from mis_core.runner.buckets import step_shape, token_buckets
from mis_core.scheduler import plan
from mis_core.scheduler.plan import StepShape
from mis_kernels.aot import targets
from mis_kernels.aot.chips import CHIPS
from mis_kernels.backends.tpu.backend import TpuBackend
from mis_kernels.backends.tpu.tiles import block_sizes

PROGRAM = Path(__file__).with_name("program.hlo").read_text()


def canonical(number: int) -> dict[str, object]:
    query = [1 + (number + place) % 999 for place in range(2000)]
    return {"query": query, "items": [[7 + item] * 20 for item in range(500)], "label_token_ids": [1, 2]}


def test_kernels_are_compiled_for_the_engines_steps() -> None:
    for name in ("PAGE_SIZE", "LONGEST_ITEM", "SLOTS"):
        assert getattr(targets, name) == getattr(plan, name), name


def test_loops_kernels_and_collectives_of_a_program_are_read() -> None:
    found = {operation.name: operation for operation in read_operations(PROGRAM)}
    assert set(found) == {
        "mul.1",
        "kernel.1",
        "y.1",
        "g.1",
        "r.1",
        "s.1",
        "s.2",
        "s.3",
        "w.1",
    }  # what a fusion calls is the fusion's
    assert (found["mul.1"].cycles, found["mul.1"].times) == (100, 27)
    assert (found["kernel.1"].kind, found["kernel.1"].cycles) == ("tpu_custom_call", None)
    assert [found[name].within for name in ("y.1", "g.1", "r.1")] == [(EXCHANGES,), (EXCHANGES,), ()]
    assert (found["g.1"].bytes, found["g.1"].devices) == (32 * 1024 * 2, 4)


def test_copies_are_read_with_their_bytes_and_overlapping_work() -> None:
    found = {operation.name: operation for operation in read_operations(PROGRAM)}
    assert [(found[name].kind, found[name].bytes) for name in ("s.1", "s.2", "s.3")] == [(COPY, 8192)] * 3
    assert found["s.1"].cycles == 1000  # of r.1
    assert found["s.2"].cycles is None  # it is behind a kernel
    assert found["s.3"].cycles == 0  # its end is elsewhere; pages are written in few steps only


def test_a_loop_that_hides_its_trips_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"while\.1 does not say"):
        read_operations(PROGRAM.replace("constant(27)", "parameter(0)"))


def test_a_conditional_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"conditional while\.2 does not say"):
        read_operations(PROGRAM.replace("while(%t.4)", "conditional(%t.4)"))


def test_a_step_pays_for_its_exchanges() -> None:
    chip, program = CHIPS["v6e"], read_operations(PROGRAM)
    without, twice = (price_program(program, 1e9, chip, lambda within, n=count: n if within else 1) for count in (0, 2))
    copies = 27 * 8192 / chip.bytes / 0.83  # of s.3
    expected = {"mlp": 2700e-9, "embed": 1000e-9, "copies": copies}
    assert {name: seconds.expected for name, seconds in without.items()} == pytest.approx(expected)
    exchanged = 2 * 0.75 * 65536 / (chip.link_bytes / 2)
    assert {name: seconds.expected for name, seconds in twice.items()} == pytest.approx(
        expected | {"exchange": exchanged, "write_pages": 14e-9}
    )


def test_a_copy_that_nothing_hides_is_paid_for() -> None:
    chip = CHIPS["v6e"]
    operation = HloOperation("s.1", COPY, "", cycles=10, times=27, bytes=16_400_000)
    found = price_program([operation], 1e9, chip)["copies"]
    assert (found.best, found.expected) == (0.0, pytest.approx(27 * (10e-6 / 0.83 - 10e-9)))


def test_stages_are_those_of_the_named_scopes() -> None:
    assert stage_of("jit(step)/layers/while/body/closed_call/mlp/dot_general") == "mlp"
    assert stage_of("jit(step)/last_layer/attention/dot_general") == "projections and norms"
    assert stage_of("jit(step)/layers/while/body/attention/write_pages/add") == "write_pages"
    assert stage_of("") == "rest"


@pytest.mark.parametrize("count", [1, 4, 8, 16])
def test_requests_that_share_steps_are_padded_little(count: int) -> None:
    shape = StepShape(2048, 256, 8, 40, 512, alignment=512)
    plans = plan_requests([canonical(number) for number in range(count)], shape, pages=(count + 2) * 40)
    rows = sum(next(size for size in token_buckets(2048) if size >= plan.rows) for plan in plans)
    assert sum(plan.new_tokens for plan in plans) == count * 12_000
    assert 1 - count * 12_000 / rows < 0.03


@pytest.mark.parametrize(
    ("query", "items", "item", "callers", "most"),
    [(2000, 500, 20, 2, 0.03), (200, 16, 20, 32, 0.1), (300, 3, 30, 32, 0.08), (60, 1, 15, 64, 0.15)],
)
def test_padding_of_many_callers_on_a_tpu_is_small(
    query: int, items: int, item: int, callers: int, most: float
) -> None:
    """Sizes that are compiled are counted; without mixed steps it was 2, 49, 24 and 85 %."""
    heads = PUBLISHED["qwen3-0.6b"].attention
    backend = TpuBackend(heads, "bfloat16", block_sizes(chip="v6e", **heads._asdict()))
    shape = step_shape(backend, 4096, pages_per_context=40, shards=1, longest_item=1024)
    bodies = [
        {
            "query": [1 + (number + place) % 999 for place in range(query)],
            "items": [[7 + one] * item for one in range(items)],
            "label_token_ids": [1],
        }
        for number in range(callers)
    ]
    plans = plan_requests(bodies, shape, pages=(callers + 2) * 40)
    rows = sum(next(size for size in token_buckets(4096) if size >= plan.rows) for plan in plans)
    assert {plan.is_mixed for plan in plans} == {query <= 1024}
    assert 1 - sum(plan.new_tokens for plan in plans) / rows < most


def test_the_roofline_counts_a_canonical_request() -> None:
    # 12,000 tokens through 440 million weights of the layers, and attention: between 15 and 17 TFLOP.
    assert 14e12 < least_flops(PUBLISHED["qwen3-0.6b"], canonical(0), normalised=False) < 17e12


def test_the_parts_of_a_canonical_request_are_those_of_its_sizes() -> None:
    config, body = PUBLISHED["qwen3-0.6b"], canonical(0)
    parts = least_flops_by_part(config, body, normalised=True)
    assert sum(parts) == least_flops(config, body, normalised=True)
    pairs = 2000 * 2001 // 2 + 500 * (20 * 2000 + 210)  # that a layer attends
    assert parts.attention == 4 * 16 * 128 * (27 * pairs + 500 * 2020)
    assert parts.head == 2 * 500 * 1024 * 151936
    rows = 55 * 12000 + 2 * 500  # of norms
    assert least_glue_bytes(config, body) == 4 * (rows * 1024 + 28 * 12000 * 32 * 128)


@pytest.mark.parametrize("tensor", [1, 4])
def test_the_products_of_a_layer_are_those_of_its_weights(tensor: int) -> None:
    config = PUBLISHED["qwen3-8b"]
    sizes = product_sizes(spread_heads(config, tensor), tensor, "v6e")
    weights = layer_weights(config, config.layers[0])
    assert tensor * sum(each.parts * each.depth * each.columns for each in sizes.values()) == weights
    assert [name for name, each in sizes.items() if each.normed] == ["qkv", "gate_up"]
    assert any(each.residual for each in sizes.values()) == (tensor == 1)


def test_whole_steps_are_compiled_of_every_model_on_every_chip() -> None:
    compiled = {name: steps_of(name) for name in DEVICES}
    for chip in ("v6e", "v7x"):
        assert {model for name, steps in compiled.items() if name.startswith(chip) for model, *_ in steps} >= {*MODELS}
    assert {model for model, *_ in compiled["v5e:2x4"]} == {*MODELS}
    assert ("qwen3-8b", 1, 1) not in compiled["v5e"]  # 16 GB of weights
    assert {(data, tensor) for _, data, tensor in compiled["v7x:2x2x1"]} == {(8, 1), (1, 8)}
