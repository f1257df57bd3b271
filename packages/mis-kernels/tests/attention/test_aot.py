"""The no-TPU tier: what it reads and compares, and that it compiles where the TPU compiler is installed."""

import subprocess
import sys
from pathlib import Path

import pytest

from mis_kernels.aot import baseline
from mis_kernels.aot.__main__ import BASELINE
from mis_kernels.aot.calibration import PUBLISHED, published_program, table
from mis_kernels.aot.programs import AttentionSize, kernel_program
from mis_kernels.aot.ranges import Range
from mis_kernels.aot.recurrence import RECURRENT_SIZES
from mis_kernels.aot.schedules import (
    Around,
    AttentionSchedule,
    BundleRun,
    GridSchedule,
    read_attention,
    read_grid,
    read_loop,
    read_schedule,
)
from mis_kernels.aot.targets import TARGETS, environment
from mis_kernels.aot.worker import run_job
from mis_kernels.heads import HEAD_SHAPES, device_head_shapes


def bundle(marks: str, *instructions: str, label: str = "") -> str:
    return f"  0x1 {label:2} : {marks} {{ {' ;; '.join(instructions)} }}"


def test_a_schedule_is_cut_at_labels_and_branches(tmp_path: Path) -> None:
    lines = [
        "legend",
        bundle("", "a"),
        bundle(">", "b", label="LB"),
        bundle(">", "c", "1 = sbr.rel (%p1) target = $region7"),
        "note",
        "  0x2   :  {} /* End region 6 :: Start/End empty region 7 */",
        bundle(">>", "d", label="PF"),
    ]
    (tmp_path / "1-segment_attention.1-72-final_bundles.txt").write_text("\n".join(lines))
    assert read_schedule(tmp_path, "segment_attention", "v6e") == [
        BundleRun(1),
        BundleRun(2, depth=1, target=7),
        BundleRun(1, depth=1, regions=frozenset({6, 7})),
        BundleRun(1, depth=2),
    ]
    assert not list(tmp_path.iterdir())
    with pytest.raises(FileNotFoundError, match="no schedule of segment_attention"):
        read_schedule(tmp_path, "segment_attention", "v6e")


@pytest.mark.parametrize(
    ("chip", "product", "busy"),
    [
        ("v6e", "vmatmul.mubr.bf16.gmra.mxu0", 3 * 8 + 1 - 4),  # one unit, eight cycles each
        ("v5e", "vmatmul.bf16.gmra.mxu0", 3 * 16 + 1 - 4),
        ("v5e", "vmatmul.lmr.bf16.gmra.16.mxu0", 3 * 8 + 1 - 4),
        ("v7x", "vmatmul.mubr.bf16.gmra.mrb", 8 + 1 - 4 + 1),  # the four take turns on two units
    ],
)
def test_matrix_units_without_a_queue_push_back(tmp_path: Path, chip: str, product: str, busy: int) -> None:
    (tmp_path / "1-k.1-72-final_bundles.txt").write_text("\n".join(bundle("", product) for _ in range(4)))
    [run] = read_schedule(tmp_path, "k", chip)
    assert run == BundleRun(4, busy=busy)


def loop(body: int, *, behind: int, depth: int = 2) -> list[BundleRun]:
    """A loop over tiles: its head, a branch over a loop over pages, and the body."""
    skip = 100 + body
    return [
        BundleRun(10, depth, target=skip),
        BundleRun(3, depth + 1),
        BundleRun(4, depth),
        BundleRun(5, depth, regions=frozenset({skip})),
        BundleRun(body, depth, busy=body // 10, target=behind),
    ]


def test_the_parts_of_a_kernel_without_near_tiles_are_found() -> None:
    runs = [
        BundleRun(20, 1, target=1),
        *loop(1200, behind=2),
        BundleRun(6, 1),
        *loop(1100, behind=3),
        BundleRun(6, 1),
        *loop(1300, behind=4),
        BundleRun(40, 1, regions=frozenset({9}), target=5),
        *loop(2000, behind=6),
        BundleRun(50, 1, regions=frozenset({1, 5})),
    ]
    found = read_attention(runs, has_near=False)
    assert found.tiles == {"full": 1200, "limited": 1100, "masked": 1300, "anew": 2000}
    with pytest.raises(ValueError, match="no 6 tiles"):
        read_attention(runs)


def test_the_parts_of_the_attention_kernel_are_found() -> None:
    runs = [
        BundleRun(99),
        BundleRun(20, 1, target=1),
        BundleRun(30, 1, target=9),
        *loop(1200, behind=2),
        BundleRun(6, 1),
        *loop(1100, behind=3),
        BundleRun(6, 1),
        *loop(1300, behind=4),
        BundleRun(6, 1),
        *loop(700, behind=7),
        BundleRun(40, 1, regions=frozenset({9}), target=5),  # what is computed anew is skipped
        BundleRun(70, 1),
        *loop(2000, behind=6),
        BundleRun(6, 1),
        *loop(1200, behind=8),
        BundleRun(80, 1),
        BundleRun(50, 1, regions=frozenset({1, 5})),
    ]
    assert read_attention(runs) == AttentionSchedule(
        tiles={"full": 1200, "limited": 1100, "masked": 1300, "near": 700, "anew": 2000, "near anew": 1200},
        busy={"full": 120, "limited": 110, "masked": 130, "near": 70, "anew": 200, "near anew": 120},
        tile=Around(10 + 5, 10 + 4 + 5),
        page=3,
        block=Around(20 + 30 + 6 + 6 + 6 + 40 + 50, 20 + 30 + 6 + 6 + 6 + 40 + 50),
    )


def test_a_grid_step_is_its_body_and_what_surrounds_it() -> None:
    runs = [
        BundleRun(9),
        BundleRun(20, 1, target=1),
        BundleRun(30, 1),
        BundleRun(5, 1, regions=frozenset({1})),
        BundleRun(700, 1, busy=8),
        BundleRun(6, 1),
    ]
    assert read_grid(runs) == GridSchedule(700, 8, Around(20 + 5 + 6, 20 + 30 + 5 + 6))
    assert read_grid([*runs, BundleRun(500, 1, busy=2)], bodies=2) == GridSchedule(600, 5, Around(31, 61))


def test_a_looping_grid_step_is_its_loops_and_skipped_bundles() -> None:
    runs = [
        BundleRun(9), BundleRun(20, 1), BundleRun(30, 1, target=1), BundleRun(5, 1, target=2, busy=1),
        BundleRun(600, 1, busy=3),
        BundleRun(7, 1, regions=frozenset({2})), BundleRun(300, 1, busy=2), BundleRun(200, 2, busy=5),
        BundleRun(6, 1, regions=frozenset({1})),
    ]  # fmt: skip
    around = Around(20 + 30 + 5 + 7 + 6, 20 + 30 + 5 + 7 + 6)
    assert read_loop(runs, 4) == [
        GridSchedule(600 + 300 + 4 * 200, 3 + 2 + 4 * 5, around), GridSchedule(300 + 4 * 200, 2 + 4 * 5, around)
    ]  # fmt: skip
    assert read_loop([*runs[:7], runs[8]], 1) == [GridSchedule(900, 5, around), GridSchedule(300, 2, around)]


def test_published_times_are_held_against_estimates() -> None:
    """One is estimated right, the others at half."""
    estimates = [Range.of(each.seconds / 2) for each in PUBLISHED]
    estimates[0] = Range.of(PUBLISHED[0].seconds)
    found = table(estimates)
    assert f"median ratio 0.50, 0.50 to 1.00, of {len(PUBLISHED)} published times" in found
    assert len(PUBLISHED) >= 4
    assert all(each.source in found for each in PUBLISHED)


def test_a_kernel_without_its_tiles_is_refused() -> None:
    with pytest.raises(ValueError, match="no 6 tiles"):
        read_attention([BundleRun(10, 1), BundleRun(20, 2)])


def test_a_regression_is_more_than_five_percent() -> None:
    old = {"v6e:1x1": {"a": {"bundles.full": 1000, "temporaries": 0}}}
    assert baseline.regressions(old, {"v6e:1x1": {"a": {"bundles.full": 1050}, "b": {"bundles.full": 9999}}}) == []
    assert baseline.regressions(old, {"v6e:1x1": {"a": {"bundles.full": 1051}}}) == [
        "v6e:1x1: a: bundles.full 1000 -> 1051"
    ]


def test_memory_quadratic_in_tokens_is_named() -> None:
    def row(tokens: int, temporaries: int) -> dict:
        return {
            "name": f"growth extend {tokens} tokens",
            "tokens": tokens,
            "arguments": tokens,
            "temporaries": temporaries,
        }

    assert baseline.superlinear([row(2048, 0), row(8192, 2**27), row(32768, 2**29)]) == []
    assert len(baseline.superlinear([row(32768, 2**30 + 2**24 + 1)])) == 1


def test_updating_the_baseline_keeps_other_programs(tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    baseline.store(path, {"v5e": {"a": {"temporaries": 1}}})
    baseline.store(path, {"v5e": {"b": {"temporaries": 2}}, "v7x": {}})
    assert baseline.load(path) == {"v5e": {"a": {"temporaries": 1}, "b": {"temporaries": 2}}, "v7x": {}}


def test_the_baseline_covers_all_head_shapes_and_meets_targets() -> None:
    stored = baseline.load(BASELINE)
    names = {
        f"attention kv{heads.kv_heads} g{heads.group} d{heads.head_dim} bfloat16" for heads in device_head_shapes()
    } | {
        f"gated delta, {shape.key_heads} key heads, {shape.value_heads} value heads, bfloat16"
        for shape, _ in RECURRENT_SIZES
    }
    for target in ("v5e", "v6e:1x1", "v7x"):
        assert names <= stored[target].keys()
    assert stored["v6e:1x1"]["attention kv8 g2 d128 bfloat16"]["bundles.full"] <= 1000  # of 1024 x 512, by design


@pytest.mark.tpu_aot
@pytest.mark.full  # `python -m mis_kernels.aot --quick` compiles it, too
def test_the_kernel_compiles_for_v6e() -> None:
    [row] = run_job("v6e:1x1", kernel_program, [AttentionSize(HEAD_SHAPES["qwen3-0.6b"])])
    assert row["bundles"]["full"] > 0


@pytest.mark.tpu_aot
def test_a_published_time_is_met() -> None:
    """Splash attention on v6e: a kernel like ours, by somebody else."""
    published = PUBLISHED[-1]
    [row] = run_job(published.target, published_program, [published])
    assert row["estimate"].expected == pytest.approx(published.seconds, rel=0.15)


@pytest.mark.tpu_aot
def test_the_compiler_takes_what_a_tpu_is_to_show() -> None:
    """In the shapes of tests marked `tpu`: emulation takes some that the compiler refuses."""
    tests = Path(__file__).parents[1]
    command = [sys.executable, str(tests / "support" / "compile_tier.py"), str(tests)]
    environ = environment(TARGETS["v6e:1x1"], None)
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout) > 20
