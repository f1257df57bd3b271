"""What a compiled GPU program launches, and when the check of it fails."""

from pathlib import Path
from typing import Any

import pytest

from mis_kernels.aot import baseline
from mis_kernels.aot.cuda import __main__ as command
from mis_kernels.aot.cuda.check import depends_on_data, line_of
from mis_kernels.aot.cuda.launches import Launches, read_launches, read_layer
from mis_kernels.aot.cuda.targets import TARGETS
from mis_kernels.aot.cuda.worker import OTHER_HEADS
from mis_kernels.heads import device_head_shapes
from mis_kernels.target import CUDA_CAPABILITIES

# As XLA writes it for an H100: a loop over 27 layers; in each, one over 16 blocks that holds one of unknown turns.
PROGRAM = """\
HloModule jit_step, is_scheduled=true

%tile (p: (s32[], f32[8])) -> (s32[], f32[8]) {
  %p = (s32[], f32[8]{0}) parameter(0)
  %a = f32[8]{0} get-tuple-element(%p), index=1
  %kernel = f32[8]{0} custom-call(%a), custom_call_target="__gpu$xla.gpu.triton"
  %add = s32[] fusion(%a), kind=kLoop, calls=%f
  ROOT %out = (s32[], f32[8]{0}) tuple(%add, %kernel)
}

%is_more (p: (s32[], f32[8])) -> pred[] {
  %p = (s32[], f32[8]{0}) parameter(0)
  ROOT %less = pred[] fusion(%p), kind=kLoop, calls=%f
}

%block (p: (s32[], f32[8])) -> (s32[], f32[8]) {
  %p = (s32[], f32[8]{0}) parameter(0)
  %copied = f32[8]{0} copy(%p)
  %tiles = (s32[], f32[8]{0}) while(%p), condition=%is_more, body=%tile, metadata={op_name="jit(step)/layers/while/body/while"}
  ROOT %out = (s32[], f32[8]{0}) bitcast(%tiles)
}

%layer (p: (s32[], f32[8])) -> (s32[], f32[8]) {
  %p = (s32[], f32[8]{0}) parameter(0)
  %start = ((f32[8]{0}), f32[8]{0}) async-start(%p), calls=%wrapped
  %done = f32[8]{0} async-done(%start)
  %blocks = (s32[], f32[8]{0}) while(%p), condition=%is_more, body=%block, backend_config={"known_trip_count":{"n":"16"}}
  ROOT %gemm = (s32[], f32[8]{0}) custom-call(%blocks), custom_call_target="__cublas$lt$matmul"
}

%wrapped (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  ROOT %slice = f32[8]{0} dynamic-slice(%p)
}

ENTRY %main (p: (s32[], f32[8])) -> (s32[], f32[8]) {
  %p = (s32[], f32[8]{0}) parameter(0)
  %embed = f32[8]{0} fusion(%p), kind=kLoop, calls=%f
  ROOT %out = (s32[], f32[8]{0}) while(%p), condition=%is_more, body=%layer, metadata={op_name="jit(step)/layers/while"}, backend_config={"known_trip_count":{"n":"27"}}
}
"""  # noqa: E501


def row(step: str, launches: int = 1, **others: Any) -> dict[str, Any]:
    fixed = {"target": "h100", "name": f"attention, {step}", "seconds": 1.0, "temporaries": 0, "loops": []}
    return fixed | {"launches": launches} | others


def test_loops_of_known_length_are_counted_others_per_iteration() -> None:
    layer = read_layer(PROGRAM)
    assert layer == Launches(known=1 + 16 * 1 + 1, loops=(16 * 3,))
    assert read_launches(PROGRAM) == Launches(known=1 + 27 * 18, loops=(27 * 48,))


def test_text_without_layers_or_entry_is_refused() -> None:
    with pytest.raises(ValueError, match="0 loops over layers"):
        read_layer(PROGRAM.replace("layers/while", "while"))
    with pytest.raises(ValueError, match="no entry"):
        read_launches(PROGRAM.replace("ENTRY", ""))
    with pytest.raises(ValueError, match="does not say which branch"):
        read_launches(
            PROGRAM.replace(" fusion(%p), kind=kLoop, calls=%f\n  ROOT %out", " conditional(%p)\n  ROOT %out")
        )


def test_a_loop_over_tiles_fails_the_check() -> None:
    assert depends_on_data([row("items"), row("decoding")]) == []
    [found] = depends_on_data([row("items"), row("decoding", loops=[48])])
    assert found == "h100: attention, decoding: a loop's turns depend on data"


def test_launches_that_grow_with_a_step_fail_the_check() -> None:
    [found] = depends_on_data([row("one tile"), row("more tokens", 2)])
    assert found == "h100: attention: launches are not constant: 1 with one tile, 2 with more tokens"
    assert depends_on_data([row("one tile"), row("more tokens", 2, target="l4")]) == []
    # XLA fuses what surrounds attention in a step as it likes.
    assert depends_on_data([row("8 contexts", 22, in_all=600), row("1 context", 24, in_all=650)]) == []
    assert len(depends_on_data([row("8 contexts", 22, in_all=600), row("1 context", 25, in_all=650)])) == 1


def test_one_launch_more_is_a_regression() -> None:
    old, new = (baseline.figures({"h100": [row("items", launches)]}) for launches in (22, 23))
    assert baseline.regressions(old, old) == []
    assert baseline.regressions(old, new) == ["h100: attention, items: launches 22 -> 23"]


def test_a_line_says_what_a_layer_launches() -> None:
    assert "launches 1, temporaries 0.0 MiB" in line_of(row("items"))
    found = line_of(row("items", 298, loops=[224, 192], in_all=8348, temporaries=3 * 2**20))
    assert "launches a layer 298 + 224 a turn + 192 a turn, 8348 in all, temporaries 3.0 MiB" in found


def test_the_stored_baseline_covers_every_heads_on_every_gpu() -> None:
    stored = baseline.load(command.BASELINE)
    assert stored.keys() == TARGETS.keys() == CUDA_CAPABILITIES.keys()
    for programs in stored.values():
        for heads in [*device_head_shapes(), *OTHER_HEADS]:
            name = f"attention kv{heads.kv_heads} g{heads.group} d{heads.head_dim} bfloat16"
            assert {programs[f"{name}, {step}"]["launches"] for step in ("items", "decoding")} == {1}


def test_targets_are_the_gpus_that_code_is_made_for() -> None:
    for chip, target in TARGETS.items():
        assert float(".".join(map(str, target.capability))) == CUDA_CAPABILITIES[chip]


def test_the_baseline_is_part_of_the_package() -> None:
    import mis_kernels

    assert command.BASELINE.parent == Path(mis_kernels.__file__).parent
