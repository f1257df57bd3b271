"""What a profile on a CPU says without a clock, and how it divides the clock."""

import re
from collections.abc import Callable
from pathlib import Path

import jax
import pytest
from click.testing import CliRunner

from mis_bench.artifact import read_artifact
from mis_bench.cli import main
from mis_bench.profile.breakdown import by_clock
from mis_bench.profile.limits import clock_of_parts, copy_rate
from mis_bench.profile.records import Profile
from mis_bench.profile.trace import Operation
from mis_core.aot.roofline import least_flops_by_part, least_glue_bytes
from mis_core.models.config import read_model_config
from mis_kernels.backends.native import library

LAYERS = 4
SMALL = "probe-30-6-5"


@pytest.fixture(scope="module")
def model(checkpoint_factory: Callable[..., Path]) -> Path:
    if why := library.why_not():
        pytest.skip(why)
    return checkpoint_factory(vocab_size=2048, num_hidden_layers=LAYERS)


@pytest.fixture(scope="module")
def profiled(model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Profile, str]:
    """A profile in bfloat16 by the native library, and what it printed."""
    return profile(model, tmp_path_factory)


def profile(model: Path, folders: pytest.TempPathFactory, *more: str) -> tuple[Profile, str]:
    jax.clear_caches()  # a profile describes all programs that are loaded
    folder = folders.mktemp("profiles") / "kernels"
    engine = ("dtype=bfloat16", "chunked_prefill_size=256", "context_length=512", "skip_warmup=true", *more)
    options = [part for option in engine for part in ("--option", option)]
    arguments = ("--scenario", "kernels", "--model", str(model), "--workload", SMALL, "--output", str(folder))
    result = CliRunner().invoke(main, ["profile", *arguments, *options], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    found = read_artifact(folder / "profile.json")
    assert isinstance(found, Profile)
    return found, result.stdout


def steps_of(artifact: Profile) -> int:
    (steps,) = [each.count for each in artifact.calls if (each.stage, each.name) == ("final_norm", "mis_rms_norm")]
    return steps


def test_a_step_calls_the_library_so_often_and_copies_no_rows(profiled: tuple[Profile, str]) -> None:
    assert_calls(profiled[0], "mis_packed_linear")


def test_a_step_in_int8_has_no_more_calls_and_copies(model: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Rows are quantised and products rounded, gated and added in the calls that multiply."""
    assert_calls(profile(model, tmp_path_factory, "quantization=int8")[0], "mis_int8_product")


def assert_calls(artifact: Profile, product: str) -> None:
    steps = steps_of(artifact)
    calls = {
        (each.stage, each.name): each.count / steps for each in artifact.calls if not each.name.startswith("copy ")
    }
    assert calls == {
        ("norm", "mis_rms_norm"): 2 * LAYERS,
        ("qkv", product): LAYERS,
        ("norm_rope", "mis_norm_rope"): LAYERS,
        ("attention", "mis_segment_attention"): LAYERS,
        ("out", product): LAYERS,
        ("gate_up", product): LAYERS,
        ("down", product): LAYERS,
        ("final_norm", "mis_rms_norm"): 1,
        ("log_sum_exp", "mis_exponentials"): 1,
    }
    copies = [
        (each.stage, each.count / steps, each.bytes / each.count)
        for each in artifact.calls
        if each.name.startswith("copy ")
    ]
    counter = 4  # the number of a layer
    assert sorted(copies) == [("unattributed", 1, counter), ("unattributed", LAYERS - 1, counter)]


def test_a_step_reads_each_row_once_a_call_and_one_layer(profiled: tuple[Profile, str], model: Path) -> None:
    artifact, stdout = profiled
    config = read_model_config(model)
    heads, kv_heads, head_dim = config.attention
    attended, projected = heads * head_dim, (heads + 2 * kv_heads) * head_dim
    rows, scored, page_slots = 64, 128, 512 // 64

    def product(depth: int, columns: int, *, matrices: int = 1, added: int = 0) -> tuple[int, int]:
        number_of_layer = 4
        return 2 * (rows * depth + matrices * depth * columns + added) + number_of_layer, 2 * rows * columns

    hidden = rows * config.embed
    norm = 2 * hidden + 4 * config.embed, 2 * hidden
    of_a_layer = {
        ("norm", "mis_rms_norm"): (2 * norm[0], 2 * norm[1]),
        ("qkv", "mis_packed_linear"): product(config.embed, projected),
        ("norm_rope", "mis_norm_rope"): (2 * rows * projected + 4 * 2 * (rows + 1) * head_dim, 2 * rows * projected),
        ("attention", "mis_segment_attention"): (
            2 * rows * projected + 4 * ((3 + page_slots) * rows + 1), 2 * rows * attended
        ),
        ("out", "mis_packed_linear"): product(attended, config.embed, added=hidden),
        ("gate_up", "mis_packed_linear"): product(config.embed, config.mlp, matrices=2),
        ("down", "mis_packed_linear"): product(config.mlp, config.embed, added=hidden),
    }  # fmt: skip
    expected = {call: (LAYERS * read, LAYERS * written) for call, (read, written) in of_a_layer.items()}
    expected["final_norm", "mis_rms_norm"] = norm
    vocab = config.vocab_size
    expected["log_sum_exp", "mis_exponentials"] = 2 * (scored + vocab) * config.embed, 2 * 4 * scored
    steps = steps_of(artifact)
    found = {(each.stage, each.name): each for each in artifact.calls if not each.name.startswith("copy ")}
    assert {call: ((each.bytes_read or 0) / steps, each.bytes / steps) for call, each in found.items()} == expected
    products = [sizes for (_, name), sizes in expected.items() if name == "mis_packed_linear"]
    read, written = (f"{steps * sum(sizes) / 2**20:.3g}" for sizes in zip(*products, strict=True))
    assert re.search(rf" products +{4 * LAYERS * steps} +{read} +{written} ", stdout)


def test_parts_of_the_clock_are_held_against_their_limits(profiled: tuple[Profile, str], model: Path) -> None:
    artifact, stdout = profiled
    limits, device = artifact.limits, artifact.device
    assert limits is not None
    assert device is not None
    parts = {each.name: each for each in limits.parts}
    assert sum(each.seconds for each in limits.parts) == pytest.approx(device.wall_ms / 1e3)
    assert parts["gaps"].seconds == pytest.approx((device.wall_ms - device.busy_ms) / 1e3)
    config = read_model_config(model)
    request = {"query": range(30), "items": [range(5)] * 6}
    flops = least_flops_by_part(config, request, normalised=True)
    work = {"products": flops.products, "attention": flops.attention, "head": flops.head}
    work["norms and RoPE"] = least_glue_bytes(config, request)
    assert {name: part.work for name, part in parts.items() if part.work} == {
        name: 2 * each for name, each in work.items()
    }
    best = max(limits.product_rates.values())
    assert parts["attention"].limit_s == pytest.approx(2 * flops.attention / best)
    assert parts["norms and RoPE"].limit_s == pytest.approx(2 * work["norms and RoPE"] / limits.bytes_per_s)
    assert "MIS multiplies up to" in stdout
    assert "minor faults" in stdout


def operation(scope: str, begin: float, end: float) -> Operation:
    return Operation("/host:CPU", "jit_step", scope, "fusion", f"jit(step)/layers/{scope}", begin, end)


def test_the_clock_is_divided_without_counting_a_moment_twice() -> None:
    operations = [operation("qkv", 10, 40), operation("write_pages", 20, 60), operation("norm", 30, 50)]
    assert by_clock(operations, [(0, 100)]) == {None: 50, "qkv": 10, "write_pages": 20, "norm": 20}
    assert by_clock(operations, [(0, 25), (55, 58)]) == {None: 10, "qkv": 10, "write_pages": 8}


def test_stages_without_a_limit_are_the_rest() -> None:
    parts = clock_of_parts({"qkv": 1e9, "down": 2e9, "write_pages": 3e9, "unattributed": 1e9, None: 5e9})
    assert parts == {
        "products": 3.0, "attention": 0.0, "head": 0.0, "norms and RoPE": 0.0, "copies and the rest": 4.0, "gaps": 5.0,
    }  # fmt: skip


def test_memory_is_copied_at_a_possible_rate() -> None:
    assert 1e8 < copy_rate() < 1e13
