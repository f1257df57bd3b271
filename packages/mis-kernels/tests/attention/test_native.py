"""What only the native kernel has to keep: its cuts into blocks and tiles, its threads, calls from many devices.

Parity over the shared cases and the isolation of segments are in `test_backends.py` and `test_grid.py`.
"""

import ctypes
import dataclasses
import hashlib
import itertools
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from kernel_cases import NEEDS_FLOAT32, NEEDS_NATIVE, Case, Segment, in_float32
from mis_kernels import segment_attention, to_bits
from mis_kernels.backends import choose
from mis_kernels.backends.native import library
from mis_kernels.heads import HeadShape
from mis_testing.devices import environment_with_devices
from mis_testing.grids import part
from mis_testing.tolerances import ATTENTION

pytestmark = NEEDS_NATIVE

BLOCK_TOKENS = 512  # tokens of a block of rows if two query heads share a KV head
SUPPORT = Path(__file__).parents[1] / "support"


def untiled(case: Case) -> dict[str, Any]:
    """The keyword arguments of `segment_attention` for a step in bfloat16 without tile lists."""
    return case.arrays(jnp.bfloat16, "native")


def attend(arrays: dict[str, Any]) -> np.ndarray:
    """Output bits, `[tokens, heads, head_dim]` uint16."""
    return np.asarray(to_bits(segment_attention(**arrays)))


def as_float(bits: np.ndarray) -> np.ndarray:
    return np.asarray(bits.view(jnp.bfloat16), np.float32)


@pytest.mark.parametrize("point", part([*itertools.product([1, 2, 3, 4, 5, 7, 8], [32, 64, 96, 128, 256])], one_in=5))
def test_every_group_and_width_of_head(point: tuple[int, int]) -> None:
    group, head_dim = point
    segments = [Segment(19), Segment(1), Segment(23, context=1, context_len=31)]
    arrays = untiled(Case(segments, contexts=(290, 40), group=group, head_dim=head_dim))
    np.testing.assert_allclose(
        as_float(attend(arrays)), in_float32(arrays), atol=ATTENTION["bfloat16"], rtol=ATTENTION["bfloat16"]
    )


@pytest.mark.parametrize("window", [None, 24])
def test_rows_that_are_read_keep_their_bits(window: int | None) -> None:
    segments = [Segment(600, context=1), *[Segment(20)] * 40, Segment(23, context=2)]
    arrays = untiled(Case(segments, contexts=(290, 40, 0), group=2, head_dim=32, window=window))
    whole = attend(arrays)
    rows = np.array([0, 599, *range(619, 1400, 20), 1401, 1422, 1422], np.int32)
    backend = choose(HeadShape(2 * arrays["k"].shape[1], arrays["k"].shape[1], 32), "bfloat16", "native")
    narrowed = attend(arrays | {"segments": jax.jit(backend.narrowed)(arrays["segments"], rows)})
    np.testing.assert_array_equal(narrowed[rows], whole[rows])
    assert not np.delete(narrowed, rows, axis=0).any()
    assert np.delete(whole, rows, axis=0).any(axis=(1, 2))[:1300].all()


@pytest.mark.parametrize("page_size", [16, 32, 128, 512])
def test_bits_do_not_depend_on_the_page_size(page_size: int) -> None:
    length = 700
    arrays = untiled(Case([Segment(20), Segment(9, context_len=257)], contexts=(length,), head_dim=64))
    table = arrays["segments"].page_table
    pages = -(-length // page_size)
    rng = np.random.default_rng(1)
    slots = rng.permutation(pages + 2)[:pages]

    def repaged(cache: jax.Array) -> jax.Array:
        heads, _, _, head_dim = cache.shape
        tokens = cache[:, table[0]].reshape(heads, -1, head_dim)[:, :length]
        tokens = jnp.pad(tokens, ((0, 0), (0, pages * page_size - length), (0, 0)), constant_values=jnp.nan)
        out = jnp.full((heads, pages + 2, page_size, head_dim), jnp.nan, cache.dtype)
        return out.at[:, slots].set(tokens.reshape(heads, pages, page_size, head_dim))

    other = {
        **arrays,
        "k_pages": repaged(arrays["k_pages"]),
        "v_pages": repaged(arrays["v_pages"]),
        "segments": dataclasses.replace(arrays["segments"], page_table=slots[None].astype(np.int32)),
    }
    np.testing.assert_array_equal(attend(arrays), attend(other))


@pytest.mark.parametrize("before", [1, BLOCK_TOKENS - 1, BLOCK_TOKENS - 300, BLOCK_TOKENS, 2 * BLOCK_TOKENS - 5])
@pytest.mark.parametrize("context", [0, 1], ids=["behind the same context", "behind another context"])
def test_bits_of_an_item_cut_by_a_block(before: int, context: int) -> None:
    """An item longer than a tile of keys, wherever the edges of blocks cut it."""
    item, contexts = Segment(600), (300, 70)
    alone = untiled(Case([item], contexts, head_dim=64))
    beside = untiled(Case([Segment(before, context=context), item], contexts, head_dim=64))
    np.testing.assert_array_equal(attend(alone)[: item.length], attend(beside)[before : before + item.length])


@pytest.mark.parametrize("start", [64, 192, 256, 448])
def test_bits_of_a_chunk_that_begins_inside_a_tile(start: int) -> None:
    arrays = untiled(Case([Segment(640, paged=True)], head_dim=64))
    rows = slice(start, start + 128)
    later = Case([Segment(128, paged=True)], contexts=(start,), head_dim=64).layout("native")[0]
    later = dataclasses.replace(later, page_table=arrays["segments"].page_table)
    part = {**arrays, **{name: arrays[name][rows] for name in "qkv"}, "segments": later}
    np.testing.assert_array_equal(attend(arrays)[rows], attend(part))


def test_padding_may_hold_anything_and_gives_zeros() -> None:
    segments = [Segment(5), Segment(30), Segment(4)]
    arrays = untiled(Case(segments, contexts=(300,), head_dim=64, gap=7, tokens=64))
    token = np.arange(64)
    padding = np.asarray(arrays["segments"].segment_start) > token
    assert padding.sum() == 64 - 39
    spoilt = {**arrays, **{name: arrays[name].at[padding].set(jnp.nan) for name in "qkv"}}
    found = attend(spoilt)
    assert not found[padding].any()
    np.testing.assert_array_equal(found[~padding], attend(arrays)[~padding])


def test_a_step_of_padding_alone_gives_zeros() -> None:
    arrays = untiled(Case([Segment(5)], contexts=(300,), head_dim=64))
    token = np.arange(64, dtype=np.int32)
    nothing = dataclasses.replace(
        arrays["segments"], context_len=np.zeros(64, np.int32), segment_start=token + 1, context_id=token * 0
    )
    assert not attend({**arrays, "segments": nothing}).any()


def test_a_row_that_sees_one_key_gives_its_value() -> None:
    arrays = untiled(Case([Segment(1)] * 40, head_dim=64))
    values = np.repeat(np.asarray(to_bits(arrays["v"]))[:40], 2, axis=1)
    np.testing.assert_array_equal(attend(arrays)[:40], values)


@pytest.mark.parametrize("factor", [1e-3, 30.0])
def test_flat_and_peaked_weights(factor: float) -> None:
    arrays = untiled(Case([Segment(40)], contexts=(900,), head_dim=64))
    arrays["scale"] *= factor
    np.testing.assert_allclose(
        as_float(attend(arrays)), in_float32(arrays), atol=ATTENTION["bfloat16"], rtol=ATTENTION["bfloat16"]
    )


@pytest.mark.parametrize(("cap", "spread"), [(50.0, 1.0), (50.0, 150.0), (5.0, 15.0)])
def test_capped_logits_give_what_the_reference_gives(cap: float, spread: float) -> None:
    """Of logits within the cap, and several times as large."""
    arrays = untiled(Case([Segment(40), Segment(3)], contexts=(300,), head_dim=64, cap=cap, spread=spread))
    np.testing.assert_allclose(
        as_float(attend(arrays)), in_float32(arrays), atol=ATTENTION["bfloat16"], rtol=ATTENTION["bfloat16"]
    )


def test_infinite_logits_are_capped() -> None:
    arrays = untiled(Case([Segment(9)], contexts=(70,), head_dim=64, cap=5.0))
    arrays |= {name: jnp.abs(arrays[name]) * 1e30 for name in ("q", "k", "k_pages")}
    arrays["q"] = arrays["q"].at[::2].multiply(-1)
    found = as_float(attend(arrays))
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found, in_float32(arrays), atol=ATTENTION["bfloat16"], rtol=ATTENTION["bfloat16"])


def test_caches_of_bits_give_the_same_output() -> None:
    arrays = untiled(Case([Segment(20), Segment(130, paged=True, context=1)], contexts=(100, 64), head_dim=64))
    as_bits = {**arrays, "k_pages": to_bits(arrays["k_pages"]), "v_pages": to_bits(arrays["v_pages"])}
    np.testing.assert_array_equal(attend(arrays), attend(as_bits))


def test_bits_do_not_depend_on_threads_or_devices() -> None:
    """One thread, several, and the KV heads cut over eight devices of one process."""
    found = [_digests(threads=1, devices=1), _digests(threads=7, devices=1), _digests(threads=2, devices=8)]
    assert len(set(found)) == 1, found


def _digests(threads: int, devices: int) -> str:
    environment = {
        **environment_with_devices(devices),
        "NPROC": str(threads),  # of XLA's pool
        "PYTHONPATH": os.pathsep.join([str(SUPPORT), os.environ.get("PYTHONPATH", "")]),
    }
    command = [sys.executable, __file__]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads(done.stdout)
    assert report["devices"] == devices
    return report["digest"]


def _print_digest() -> None:
    segments = [Segment(20)] * 40 + [Segment(300, context=1)]
    arrays = untiled(Case(segments, contexts=(700, 70), kv_heads=8, head_dim=64))
    scale, backend = arrays.pop("scale"), arrays.pop("backend")
    mesh = Mesh(np.array(jax.devices()), ("tensor",))
    new, cached = P(None, "tensor"), P("tensor")
    cut = {"q": new, "k": new, "v": new, "k_pages": cached, "v_pages": cached}
    cut["segments"] = jax.tree.map(lambda _: P(), arrays["segments"])

    def attend_part(part: dict[str, Any]) -> jax.Array:
        return segment_attention(**part, scale=scale, backend=backend)

    run = jax.jit(jax.shard_map(attend_part, mesh=mesh, in_specs=(cut,), out_specs=new, check_vma=False))
    digest = hashlib.sha256()
    for _ in range(5):  # threads take turns in another order each time
        digest = hashlib.sha256(digest.digest() + np.asarray(to_bits(run(arrays))).tobytes())
    sys.stdout.write(json.dumps({"devices": len(jax.devices()), "digest": digest.hexdigest()}))


if __name__ == "__main__":
    _print_digest()


@NEEDS_FLOAT32
@pytest.mark.skipif(platform.machine() != "x86_64" or "MIS_NATIVE_LIBRARY" in os.environ, reason="needs an x86-64 CPU")
def test_bits_in_float32_are_the_same_without_avx_512() -> None:
    """Both libraries in one process, each under names of its own."""
    case = Case([Segment(40), Segment(9, context=1)], contexts=(290, 40), head_dim=64, cap=5.0, window=200)
    arrays = case.arrays(jnp.float32, "native")
    segments, function = arrays["segments"], ctypes.CDLL(str(library.path_for_avx2())).mis_float32_segment_attention
    jax.ffi.register_ffi_target("attention_for_avx2", jax.ffi.pycapsule(function), platform="cpu")
    call = jax.ffi.ffi_call("attention_for_avx2", jax.ShapeDtypeStruct(arrays["q"].shape, jnp.float32))
    rows = (jnp.asarray(x) for x in (segments.context_id, segments.context_len, segments.segment_start))
    table, how = jnp.asarray(segments.page_table), {"scale": np.float32(arrays["scale"]), "cap": np.float32(5)}
    tensors = (arrays[name] for name in ("q", "k", "v", "k_pages", "v_pages"))
    found = call(*tensors, *rows, table, jnp.int32(200), **how, has_tiles=np.bool_(False))
    np.testing.assert_array_equal(np.asarray(found), np.asarray(segment_attention(**arrays)))
