"""Reads the compiler's dumped schedules: one VLIW bundle is about one cycle."""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

_BUNDLE = re.compile(r"\s*0x([0-9a-f]+)\s+(LB|LH|LE|PB|PF)?\s*:\s*(>*)")
_BRANCH = re.compile(r"sbr\.rel \(.*?\) target = \$region(\d+)")
_REGION = re.compile(r"region (\d+)")
_PRODUCT = re.compile(r"vmatmul\.(\S*?)\.?(mxu\d|mrb)\b")
_UNITS = {"v5e": 4, "v6e": 2, "v7x": 2}
_PRODUCT_CYCLES = {"v5e": 16, "v6e": 8, "v7x": 8}
"""Cycles of one product instruction, 16 rows of bfloat16: the units take one row a cycle on v5e, two on the others, by
which their published peaks are reached. Instructions named `lmr` have half of the rows."""

KINDS = ("full", "limited", "masked", "near", "anew", "near anew")
"""Tiles in the order of their loops; the last two are those of rows that are computed anew."""


class BundleRun(NamedTuple):
    """A straight run of bundles between labels and branches.

    Attributes:
        bundles: Its length.
        depth: Loops around it.
        busy: Cycles by which matrix units that take their products in order, and keep none waiting, would lengthen it.
        target: Region behind which it ends if its last branch is taken, forward; None: it has none.
        regions: Regions that begin or end in it.
    """

    bundles: int
    depth: int = 0
    busy: int = 0
    target: int | None = None
    regions: frozenset[int] = frozenset()


class Around(NamedTuple):
    """Bundles around a body: at least those that no branch skips, at most all."""

    least: int
    most: int


class AttentionSchedule(NamedTuple):
    """What parts of the attention kernel take.

    Attributes:
        tiles: Bundles of the arithmetic of each kind of tile that the kernel has.
        busy: Cycles that matrix units which keep nothing waiting add to each.
        tile: Bundles around a tile: the loop, starting and awaiting copies that fetch a whole tile.
        page: Bundles that start and await the copies of one page, where pages do not follow one another.
        block: Bundles around a block's tiles.
    """

    tiles: dict[str, int]
    busy: dict[str, int]
    tile: Around
    page: int
    block: Around


class GridSchedule(NamedTuple):
    """What a grid step of a kernel takes: bundles of its arithmetic, what matrix units add, and what surrounds it."""

    body: int
    busy: int
    around: Around


def read_schedule(folder: Path, kernel: str, chip: str) -> list[BundleRun]:
    """Read the newest schedule of a kernel from a dump folder, in the program's order, and empty the folder.

    Raises:
        FileNotFoundError: the compiler dumped none.
    """
    found = sorted(folder.glob(f"*{kernel}*[0-9]-final_bundles.txt"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise FileNotFoundError(f"no schedule of {kernel} was dumped; this libtpu may have renamed its flags")
    runs = list(_runs(found[-1].read_text().splitlines(), chip))
    for path in folder.iterdir():
        path.unlink()
    return runs


def _runs(lines: Iterable[str], chip: str) -> Iterable[BundleRun]:
    bundles: list[str] = []
    depth = 0

    def run() -> BundleRun:
        branch = _BRANCH.search(bundles[-1])
        regions = frozenset(int(n) for line in bundles for n in _REGION.findall(line))
        target = int(branch.group(1)) if branch else None
        return BundleRun(len(bundles), depth, _busy(bundles, chip), target, regions)

    for line in lines:
        match = _BUNDLE.match(line)
        if match is None:
            continue
        if match.group(2) and bundles:
            yield run()
            bundles = []
        if not bundles and "{}" not in line:  # an empty bundle has no marks of the loops around it
            depth = len(match.group(3))
        bundles.append(line)
        if "sbr.rel" in line:
            yield run()
            bundles = []
    if bundles:
        yield run()


def _busy(bundles: list[str], chip: str) -> int:
    """Return the cycles by which the run is longer if every product waits until its unit is free."""
    free: dict[str, int] = defaultdict(int)
    time = 0
    for line in bundles:
        for form, unit in _PRODUCT.findall(line):
            cycles = _PRODUCT_CYCLES[chip] // (2 if "lmr" in form else 1)
            # Where the instruction names no unit, the one that is free first takes it.
            name = unit if unit != "mrb" else min((f"mxu{n}" for n in range(_UNITS[chip])), key=lambda n: free[n])
            time = max(time, free[name])
            free[name] = time + cycles
        time += 1
    return time - len(bundles)


def read_attention(runs: list[BundleRun], *, has_near: bool = True) -> AttentionSchedule:
    """Find the parts of the attention kernel among its runs: bodies of tiles are the longest in the innermost loops.

    Args:
        runs: Of the kernel.
        has_near: Whether it has near tiles: blocks of more tokens than a tile has keys have none.

    Raises:
        ValueError: a body is not where the kernel has it; the compiler has unrolled or joined loops.
    """
    longest = max(range(len(runs)), key=lambda i: runs[i].bundles)
    inner = runs[longest].depth
    loops = [i for i, run in enumerate(runs) if run.depth == inner]
    kinds = [kind for kind in KINDS if has_near or "near" not in kind]
    bodies = sorted(sorted(loops, key=lambda i: runs[i].bundles)[-len(kinds) :])
    if len({_around(runs, i, inner) for i in bodies}) < len(kinds):
        raise ValueError(f"The kernel's schedule has no {len(kinds)} tiles in loops of their own.")
    last, anew = bodies[kinds.index("anew") - 1], bodies[kinds.index("anew")]
    rare = next((span for span in _skipped(runs) if last not in span and anew in span), range(0))
    loop = _around(runs, bodies[0], inner)
    block = [i for i, run in enumerate(runs) if run.depth == inner - 1 and i not in rare]
    tile = [i for i in loop if runs[i].depth == inner and i != bodies[0]]
    return AttentionSchedule(
        tiles={kind: runs[i].bundles for kind, i in zip(kinds, bodies, strict=True)},
        busy={kind: runs[i].busy for kind, i in zip(kinds, bodies, strict=True)},
        tile=_least_and_most(runs, tile, bodies),
        page=sum(runs[i].bundles for i in loop if runs[i].depth > inner),
        block=_least_and_most(runs, block, bodies),
    )


def read_grid(runs: list[BundleRun], bodies: int = 1) -> GridSchedule:
    """Find the parts of a kernel whose step takes one of some bodies, its longest runs; return their mean."""
    found = read_bodies(runs, bodies)
    return GridSchedule(
        sum(each.body for each in found) // bodies, sum(each.busy for each in found) // bodies, found[0].around
    )


def read_bodies(runs: list[BundleRun], bodies: int) -> list[GridSchedule]:
    """Find the parts of a kernel whose step takes one of some bodies, its longest runs; return each, longest first."""
    largest = sorted(range(len(runs)), key=lambda i: -runs[i].bundles)[:bodies]
    others = [i for i, run in enumerate(runs) if run.depth == runs[largest[0]].depth and i not in largest]
    around = _least_and_most(runs, others, largest)
    return [GridSchedule(runs[i].bundles, runs[i].busy, around) for i in largest]


def read_loop(runs: list[BundleRun], iterations: int) -> list[GridSchedule]:
    """Find the parts of a kernel whose step begins with a run that some steps skip, and goes on with one and a loop.

    Args:
        runs: Of the kernel.
        iterations: Of the loop; one is no loop, but part of what is straight.

    Returns:
        Steps that skip nothing, then the others.
    """
    inner = [i for i, run in enumerate(runs) if run.depth > 1 and iterations > 1]
    loop = max(inner, key=lambda i: runs[i].bundles, default=None)
    first, straight = sorted(
        sorted((i for i, run in enumerate(runs) if run.depth == 1), key=lambda i: -runs[i].bundles)[:2]
    )
    others = [i for i, run in enumerate(runs) if run.depth == 1 and i not in (first, straight)]
    around = _least_and_most(runs, others, [first, straight, loop])
    bodies = [runs[straight], *([] if loop is None else [runs[loop]] * iterations)]
    body, busy = sum(run.bundles for run in bodies), sum(run.busy for run in bodies)
    return [
        GridSchedule(body + runs[first].bundles, busy + runs[first].busy, around),
        GridSchedule(body, busy, around),
    ]


def _skipped(runs: list[BundleRun]) -> Iterable[range]:
    """Return the runs that each forward branch skips, longest first."""
    spans = []
    for index, run in enumerate(runs):
        later = (n for n in range(index + 1, len(runs)) if run.target in runs[n].regions)
        end = next(later, None) if run.target is not None else None
        if end is not None:
            spans.append(range(index + 1, end))
    return sorted(spans, key=len, reverse=True)


def _around(runs: list[BundleRun], index: int, depth: int) -> range:
    """Return the loop of this depth that a run lies in."""
    begin = next(n for n in range(index, -1, -1) if n == 0 or runs[n - 1].depth < depth)
    end = next(n for n in range(index, len(runs)) if n + 1 == len(runs) or runs[n + 1].depth < depth)
    return range(begin, end + 1)


def _least_and_most(runs: list[BundleRun], indices: list[int], bodies: Sequence[int | None]) -> Around:
    """Return what some runs around bodies take. A branch that skips a body skips a turn of the loop or of the grid."""
    branches = set().union(*(span for span in _skipped(runs) if not any(body in span for body in bodies)))
    most, skippable = (sum(runs[i].bundles for i in some) for some in (indices, branches.intersection(indices)))
    return Around(most - skippable, most)
