"""What an estimate counts of recurrent layers: chunks, the branches they take, arithmetic and memory."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from mis_core.aot.estimate import product_sizes
from mis_core.aot.hlo import KERNEL, HloOperation, read_operations
from mis_core.aot.price import price_program, stage_of
from mis_core.aot.programs import cache_pages, cache_slots
from mis_core.aot.recurrence import price_recurrence, recurrent_sizes
from mis_core.aot.repeats import Repeats
from mis_core.aot.roofline import chunk_flops, layer_weights, least_flops, weight_bytes
from mis_core.aot.traffic import plan_requests
from mis_core.models.config import ModelConfig
from mis_core.models.layers import attention_layers
from mis_core.models.published import PUBLISHED
from mis_core.runner.arrays import StepArrays, step_arrays
from mis_core.runner.buckets import step_shape
from mis_core.runner.memory import slots_within, state_bytes
from mis_core.scheduler.plan import PAGE_SIZE
from mis_kernels import CARRIED, EMPTY, Chunks
from mis_kernels.aot.chips import CHIPS
from mis_kernels.aot.ranges import Range
from mis_kernels.aot.schedules import Around, GridSchedule
from mis_kernels.backends.tpu.backend import TpuBackend
from mis_kernels.backends.tpu.tiles import block_sizes
from mis_kernels.recurrence import RecurrentShape
from mis_kernels.segments import NOWHERE

PROGRAM = Path(__file__).with_name("recurrent.hlo").read_text()
SMALL, WIDE = PUBLISHED["qwen3.5-0.8b"], PUBLISHED["qwen3.5-4b"]


def arrays_of(chunks: Chunks, tokens: int) -> StepArrays:
    """Return arrays of which nothing but the chunks matters."""
    devices, none = len(chunks.rows), np.zeros(0, np.int32)
    ids = np.zeros((devices, tokens), np.int32)
    return StepArrays(ids, ids, none, none, none, np.zeros(devices, np.int32), chunks)  # type: ignore[arg-type]


def test_operations_of_a_chunk_are_kept_apart_by_branch() -> None:
    assert {each.name: (each.times, each.within) for each in read_operations(PROGRAM)} == {
        "s.1": (18, ("chunks",)),
        "n.1": (18, ("chunks", "narrow")),
        "m.1": (18, ("chunks", "not narrow", "not unmoved_64")),
        "i.1": (18 * 15, ("chunks", "not narrow")),
        "w.1": (18, ("chunks", "not narrow")),
    }


def test_a_branch_that_no_chunk_decides_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"conditional cond\.1 does not say"):
        read_operations(PROGRAM.replace('body/narrow/cond"', 'body/other/cond"'))


def test_a_step_pays_for_the_chunks_of_the_busiest_device() -> None:
    """Rows 0 to 63, three items of 20 rows, and one of 40 that the array's end moves."""
    chunks = Chunks(
        rows=np.array([[0, 0, 0, 0, 0], [0, 64, 84, 300, 330]], np.int32),
        lens=np.array([[64, 0, 0, 0, 0], [64, 20, 20, 20, 40]], np.int32),
        reads=np.array([[EMPTY] * 5, [EMPTY, 3, 3, 3, 3]], np.int32),
        writes=np.full((2, 5), NOWHERE, np.int32),
        count=np.array([1, 5], np.int32),
    )
    repeats = Repeats(arrays_of(chunks, tokens=384)).of
    found = price_program(read_operations(PROGRAM), 1e9, CHIPS["v6e"], repeats)
    assert {stage: seconds.expected for stage, seconds in found.items()} == pytest.approx(
        {
            "recurrence, states": 18 * 5 * 20e-9,
            "recurrence, substitution": 18 * 2 * 15 * 10e-9,
            "recurrence, products": 18 * (3 * 100e-9 + 2 * 300e-9 + 7e-9),
        }
    )


def test_a_step_pays_for_the_kernel_of_the_busiest_device() -> None:
    """A query of 84 rows, whose state three items read: four blocks, two states kept, one fetched."""
    chunks = Chunks(
        rows=np.array([[0, 0, 0, 0, 0], [0, 64, 84, 104, 124]], np.int32),
        lens=np.array([[64, 0, 0, 0, 0], [64, 20, 20, 20, 20]], np.int32),
        reads=np.array([[EMPTY] * 5, [EMPTY, CARRIED, 3, 3, 3]], np.int32),
        writes=np.array([[NOWHERE] * 5, [NOWHERE, 3, NOWHERE, NOWHERE, NOWHERE]], np.int32),
        count=np.array([1, 5], np.int32),
    )
    schedules = {4: [GridSchedule(4000, 0, Around(0, 0)), GridSchedule(1000, 0, Around(0, 0))]}
    scope = "jit(step)/layers/while/body/closed_call/recurrence/gated_delta_tpu/gated_delta/pallas_call"
    kernel = HloOperation("gated_delta.1", KERNEL, scope, None, 18)
    others = [dataclasses.replace(kernel, scope="jit(step)/attention"), *read_operations(PROGRAM)]
    shape = SMALL.recurrence
    assert shape is not None

    def price(operations: list[HloOperation]) -> Range:
        return price_recurrence(operations, arrays_of(chunks, tokens=384), schedules, shape, CHIPS["v6e"], 1e9)

    fetched = 0.3e-6 + 4 * 4 * 128 * 128 / CHIPS["v6e"].bytes
    assert price([kernel, *others]).best == pytest.approx(18 * 4 * (4 * 4e-6 + 2 * 1e-6 + fetched))
    assert price(others) == Range.of(0.0)  # XLA's operations have prices of their own


def test_the_kernel_is_compiled_for_each_number_of_heads() -> None:
    assert recurrent_sizes(PUBLISHED["qwen3-0.6b"], 1, 8192) == {}
    assert recurrent_sizes(PUBLISHED["qwen3.5-27b"], 1, 8192) == {}  # three value heads share a key head
    assert {heads: size.tokens for heads, size in recurrent_sizes(SMALL, 1, 8192).items()} == {4: 4096, 2: 8192}
    assert recurrent_sizes(WIDE, 2, 2048)[4].shape == RecurrentShape(8, 16, 128, 128, 4)


def test_what_surrounds_the_kernel_belongs_to_its_stage() -> None:
    assert stage_of("jit(step)/layers/while/body/recurrence/gated_delta_tpu/concatenate") == "recurrence"


def test_operations_without_a_scope_belong_to_their_loop() -> None:
    assert stage_of("", ("chunks", "narrow")) == "recurrence, products"
    assert stage_of("jit(step)/layers/while/body/recurrence/qkvz/dot_general") == "projections and norms"


def test_states_are_kept_that_the_next_chunk_or_a_slot_needs() -> None:
    chunks = Chunks(
        rows=np.array([[0, 64, 128, 0]], np.int32),
        lens=np.array([[64, 64, 20, 0]], np.int32),
        reads=np.array([[EMPTY, CARRIED, 5, 0]], np.int32),
        writes=np.array([[NOWHERE, 5, NOWHERE, 0]], np.int32),
        count=np.array([3], np.int32),
    )
    repeats = Repeats(arrays_of(chunks, tokens=256)).of
    assert [repeats(("chunks", name)) for name in ("kept", "stored", "narrow")] == [2, 1, 1]
    assert repeats(("chunks", "not narrow", "kept")) == 2
    assert (repeats(()), repeats(("write_pages",))) == (1, 0)


def test_the_chunks_of_a_canonical_request_are_planned() -> None:
    """A query of 2,000 tokens has 32 chunks; each of 500 items of 20 has one, and reads the query's state."""
    heads = SMALL.attention
    backend = TpuBackend(heads, "bfloat16", block_sizes(chip="v6e", **heads._asdict()))
    shape = step_shape(backend, 4096, pages_per_context=33, shards=1, longest_item=1024)
    body = {"query": [*range(1, 2001)], "items": [[7 + n] * 20 for n in range(500)], "label_token_ids": [1]}
    counts = np.zeros(3, int)
    for plan in plan_requests([body], shape, pages=99, slots=32):
        room = shape.room(plan.is_mixed)
        repeats = Repeats(step_arrays(backend, room, plan, 4096, 512, is_recurrent=True)).of
        counts += [repeats(("chunks", *names)) for names in ((), ("narrow",), ("stored",))]
    assert counts.tolist() == [32 + 500, 500 + 1, 2]  # the query's last chunk has 16 tokens


def test_arithmetic_of_a_chunk_is_that_written_by_hand() -> None:
    shape = RecurrentShape(16, 16, 128, 128, 4)
    a_row = 6 * 64 * 128 + 6 * 128 * 128 + 64 * 128
    assert chunk_flops(shape, 64, is_last=False) == 64 * 16 * a_row
    # Value heads that share a key head share what keys and queries have in common.
    shared = RecurrentShape(16, 32, 128, 128, 4)
    a_row = 16 * 4 * 20 * 128 + 32 * (2 * 20 * 128 + 20 * 128 + 4 * 128 * 128)
    assert chunk_flops(shared, 20, is_last=True) == 20 * a_row


def test_arithmetic_of_a_request_is_that_written_by_hand() -> None:
    body = {"query": [1] * 70, "items": [[1] * 20, [1] * 100], "label_token_ids": [1, 2]}
    tokens, embed, mlp = 70 + 120, 1024, 3 * 1024 * 3584
    attends = embed * (8 * 256 * 3 + 2 * 2 * 256) + mlp
    recurs = embed * (6144 + 2 * 2048 + 32) + mlp
    assert layer_weights(SMALL, SMALL.layers[3]) == attends
    assert layer_weights(SMALL, SMALL.layers[0]) == recurs
    products = 2 * tokens * (5 * attends + 18 * recurs) + 2 * (2 * attends + tokens * embed * 2 * 2 * 256)
    pairs = 70 * 71 / 2 + (90 * 91 - 70 * 71) / 2 + (170 * 171 - 70 * 71) / 2
    attention = 4 * 8 * 256 * (5 * pairs + 90 + 170)

    def chunk(rows: int, ways: int) -> int:
        return rows * 16 * (7 * rows * 128 + ways * 128 * 128)

    recurrence = 18 * (chunk(64, 6) + chunk(6, 6) + chunk(20, 4) + chunk(64, 6) + chunk(36, 4))
    head = 2 * 2 * embed * 248_320
    assert least_flops(SMALL, body, normalised=True) == products + attention + recurrence + head


def test_quantised_products_are_those_of_both_kinds_of_layers() -> None:
    sizes = {name: each.parts * each.depth * each.columns for name, each in product_sizes(WIDE, 1, "v6e").items()}
    mlp, rates = sizes["gate_up"] + sizes["down"], 2 * 32 * WIDE.embed
    assert mlp + sizes["qkvz"] + sizes["recurrent_out"] + rates == layer_weights(WIDE, WIDE.layers[0])
    assert mlp + sizes["qkv"] + sizes["attention_gate"] + sizes["out"] == layer_weights(WIDE, WIDE.layers[3])


def test_weights_are_those_of_the_checkpoint() -> None:
    """But for norms, convolutions and what decays: 0.07 % of 752,393,024."""
    assert weight_bytes(SMALL) / 2 == pytest.approx(752_393_024, rel=1e-3)


@pytest.mark.parametrize(
    ("config", "bytes_of_slot"),
    [(SMALL, 18 * 4 * (16 * 128**2 + 3 * 6144)), (WIDE, 24 * 4 * (32 * 128**2 + 3 * 8192))],
)
def test_memory_is_shared_by_pages_and_states_as_a_server_does(config: ModelConfig, bytes_of_slot: int) -> None:
    heads = config.attention
    backend = TpuBackend(heads, "bfloat16", block_sizes(chip="v6e", **heads._asdict()))
    assert state_bytes(config, 1) == bytes_of_slot
    free = 0.75 * CHIPS["v6e"].memory - weight_bytes(config)
    slots, pages = cache_slots(config, "v6e", 1), cache_pages(config, "v6e", backend, 1)
    assert slots == slots_within(free, config, 1) == int(0.1 * free / bytes_of_slot)
    page = len(attention_layers(config.layers)) * 2 * heads.kv_heads * 256 * PAGE_SIZE * 2
    assert pages == min(2048, int((free - slots * bytes_of_slot) / page))
