"""The no-TPU tier: what it reads and compares, and that it compiles where the TPU compiler is installed."""

import subprocess
import sys
from pathlib import Path

import pytest

from mis_kernels.aot import baseline
from mis_kernels.aot.__main__ import BASELINE
from mis_kernels.aot.cost import canonical_cost, explain
from mis_kernels.aot.schedules import Schedule, read_schedule, tile_bodies
from mis_kernels.aot.targets import TARGETS, environment, run_job
from mis_kernels.backends.tpu.tiles import block_sizes
from mis_kernels.heads import HEAD_SHAPES, device_head_shapes

BUNDLES = {"full": 1000, "limited": 1100, "masked": 1200, "rest": 500}


def test_a_schedule_is_cut_at_labels_and_branches(tmp_path: Path) -> None:
    lines = ["legend", "  0x0   :  { a }", "  0x1 LB: > { b }", "  0x2   : > { sbr.rel }", "note", "  0x3   : > { c }"]
    (tmp_path / "1-segment_attention.1-72-final_bundles.txt").write_text("\n".join(lines))
    assert read_schedule(tmp_path, "segment_attention") == Schedule(4, [1, 2, 1])
    assert not list(tmp_path.iterdir())
    with pytest.raises(FileNotFoundError, match="no schedule of segment_attention"):
        read_schedule(tmp_path, "segment_attention")


def test_the_four_longest_runs_are_the_tile_bodies_in_program_order() -> None:
    assert tile_bodies(Schedule(6000, [30, 1200, 60, 1100, 1300, 310, 2000])) == {
        "full": 1200,
        "limited": 1100,
        "masked": 1300,
        "anew": 2000,
        "rest": 400,
    }


def test_a_regression_is_more_than_five_percent() -> None:
    old = {"v6e:1x1": {"a": {"bundles.full": 1000, "temporaries": 0}}}
    assert baseline.regressions(old, {"v6e:1x1": {"a": {"bundles.full": 1050}, "b": {"bundles.full": 9999}}}) == []
    assert baseline.regressions(old, {"v6e:1x1": {"a": {"bundles.full": 1051}}}) == [
        "v6e:1x1: a: bundles.full 1000 -> 1051"
    ]


def test_memory_that_grows_with_the_square_of_the_tokens_is_named() -> None:
    def row(tokens: int, temporaries: int) -> dict:
        return {
            "name": f"growth extend {tokens} tokens",
            "tokens": tokens,
            "arguments": tokens,
            "temporaries": temporaries,
        }

    assert baseline.superlinear([row(2048, 0), row(8192, 2**27), row(32768, 2**29)]) == []
    assert len(baseline.superlinear([row(32768, 2**30 + 1)])) == 1


def test_updating_the_baseline_keeps_other_programs(tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    baseline.store(path, {"v5e": {"a": {"temporaries": 1}}})
    baseline.store(path, {"v5e": {"b": {"temporaries": 2}}, "v7x": {}})
    assert baseline.load(path) == {"v5e": {"a": {"temporaries": 1}, "b": {"temporaries": 2}}, "v7x": {}}


def test_the_canonical_request_is_priced_tile_by_tile() -> None:
    target, heads = TARGETS["v6e:1x1"], HEAD_SHAPES["qwen3-0.6b"]
    blocks = block_sizes(chip="v6e", **heads._asdict())
    cost = canonical_cost(target, heads, blocks, BUNDLES)
    assert cost.tiles["limited"] == 20  # each block of items ends in the context's last 464 tokens
    assert f"= {cost.milliseconds:.1f} ms" in explain(target, heads, blocks, BUNDLES)


def test_the_stored_baseline_covers_every_heads_and_meets_the_targets() -> None:
    stored = baseline.load(BASELINE)
    names = {
        f"attention kv{heads.kv_heads} g{heads.group} d{heads.head_dim} bfloat16" for heads in device_head_shapes()
    }
    for target in ("v5e", "v6e:1x1", "v7x"):
        assert names <= stored[target].keys()
    figures = stored["v6e:1x1"]["attention kv8 g2 d128 bfloat16"]
    bundles = {name: figures[f"bundles.{name}"] for name in BUNDLES}
    target, heads = TARGETS["v6e:1x1"], HEAD_SHAPES["qwen3-0.6b"]
    blocks = block_sizes(chip="v6e", **heads._asdict())
    assert bundles["full"] / (blocks.tokens * blocks.keys) <= 1450 / (512 * 512)
    assert canonical_cost(target, heads, blocks, bundles).milliseconds <= 25


@pytest.mark.tpu_aot
def test_the_kernel_compiles_for_v6e() -> None:
    [row] = run_job("v6e:1x1", {"what": "kernels", "heads": [HEAD_SHAPES["qwen3-0.6b"]]})
    assert row["bundles"]["full"] > 0


@pytest.mark.tpu_aot
def test_the_compiler_takes_what_a_tpu_is_to_show() -> None:
    """In the shapes of tests marked `tpu`: emulation takes some that the compiler refuses."""
    tests = Path(__file__).parents[1]
    command = [sys.executable, str(tests / "support" / "compile_tier.py"), str(tests)]
    environ = environment(TARGETS["v6e:1x1"], None)
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout) > 20
