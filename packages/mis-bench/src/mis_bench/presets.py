"""Presets: what the commands `run`, `stress`, `matrix`, `compare` and `sweep` measure, as cases of a plan."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from mis_bench.profiles import ITEM_TOKENS, QUERY_TOKENS, Profile
from mis_bench.records import Cache, Case, Load, PlannedTarget, WorkloadPart
from mis_bench.workload import Workload, build_workload
from mis_bench.workloads.traces import Trace

ROUNDS = 10
"""Most rounds that the requests of a row of `run` are cut into."""

CHUNK_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 500)
"""Items of a call that `matrix` tries."""

CACHES: tuple[Cache, ...] = ("cold", "warm")
SCENARIOS = ("large-batch", "concurrent", "sustained")
STRESS_LABELS = 4


@dataclass(frozen=True, slots=True)
class Counts:
    """How often and how fast requests are sent.

    Attributes:
        runs: Timed requests of a row.
        warmup_runs: Requests before them.
        max_concurrency: Callers; in an open load most requests under way, None for no limit.
        rate: Requests a second of an open load, or None.
        rounds: Windows that the runs are cut into; None: as many as the load allows.
    """

    runs: int
    warmup_runs: int
    max_concurrency: int | None = 1
    rate: float | None = None
    rounds: int | None = None

    @property
    def turns(self) -> int:
        """Windows. Many callers need long ones, or else their beginning and end are most of what is measured."""
        if self.rounds is not None:
            return self.rounds
        callers = self.max_concurrency or 1
        most = 1 if self.rate else max(1, min(ROUNDS, self.runs // (callers if callers == 1 else 5 * callers)))
        return -(-self.runs // -(-self.runs // most))

    @property
    def load(self) -> Load:
        """What a window sends."""
        requests = -(-self.runs // self.turns)
        return Load(requests=requests, max_concurrency=self.max_concurrency, rate=self.rate)


def workload_part(
    name: str, vocab_size: int | None, *, softmax: bool = False, items: int | None = None
) -> WorkloadPart:
    """Describe the workload of a name, or its first items.

    Raises:
        WorkloadNameError: there is none of that name.
    """
    workload: Workload = replace(build_workload(name), apply_softmax=softmax)
    workload = workload if vocab_size is None else workload.within(vocab_size)
    return WorkloadPart.of(replace(workload, items=workload.items[:items]))


def run_cases(
    target: PlannedTarget,
    profile: Profile | None,
    workloads: Sequence[str],
    counts: Counts,
    *,
    vocab_size: int | None,
    parameters: int | None,
    suffix: str,
) -> Iterator[Case]:
    """Yield a case for every row of a profile, and two for every named workload: with a cold and with a warm cache."""
    rows: list[tuple[str, str, Cache, str | None]] = []
    if profile is not None:
        for items, labels, skip in profile.sizes(dtype=target.options.get("dtype"), parameters=parameters):
            workload = f"profile{labels}-{QUERY_TOKENS}-{items}-{ITEM_TOKENS}@{labels}"
            rows.append((f"batch-{items}-labels-{labels}", workload, "cold", skip))
    rows += [(f"{name}-{cache}", name, cache, None) for name in dict.fromkeys(workloads) for cache in CACHES]
    for name, workload, cache, skip in rows:
        yield Case(
            name=name + suffix,
            target=target.name,
            workload=workload_part(workload, vocab_size),
            load=counts.load,
            cache=cache,
            warmups=counts.warmup_runs,
            skip=skip,
        )


def trace_case(target: PlannedTarget, trace: Trace, warmups: int, max_concurrency: int | None, recorded: bool) -> Case:
    """Return the case that plays a trace once."""
    first = trace.arrivals[0].workload
    workloads = [arrival.workload for arrival in trace.arrivals]
    return Case(
        name=target.name,
        target=target.name,
        workload=WorkloadPart(
            name=trace.name,
            sha256=trace.sha256,
            num_items=sum(workload.num_items for workload in workloads),
            num_tokens=sum(workload.num_tokens for workload in workloads),
            num_labels=len(first.label_token_ids),
            apply_softmax=first.apply_softmax,
            vocab_size=first.vocab_size,
            is_recorded=recorded,
        ),
        load=Load(requests=None, max_concurrency=max_concurrency),
        warmups=warmups,
        is_gated=False,
    )


def stress_cases(
    target: PlannedTarget, scenarios: Sequence[str], seconds: float | None, rate: float, vocab_size: int | None
) -> Iterator[Case]:
    """Yield the loads of scenarios: sequences of at most 128 tokens, and 4 labels.

    Args:
        target: Whom.
        scenarios: Of `SCENARIOS`.
        seconds: Of a concurrent or sustained load; None: 30 and 300.
        rate: Requests a second of the sustained load.
        vocab_size: Ids are folded into it.
    """
    loads: dict[str, list[tuple[str, int, Load]]] = {
        "large-batch": [(str(items), items, Load(requests=5)) for items in (50, 100, 200)],
        "concurrent": [
            (f"{callers}x{items}", items, Load(requests=None, seconds=seconds or 30.0, max_concurrency=callers))
            for callers, items in ((4, 8), (8, 8), (16, 4))
        ],
        "sustained": [("16", 16, Load(requests=None, seconds=seconds or 300.0, max_concurrency=None, rate=rate))],
    }
    for scenario in dict.fromkeys(scenarios):
        for sizes, items, load in loads[scenario]:
            yield Case(
                name=f"{scenario}-{sizes}",
                target=target.name,
                workload=workload_part(f"stress-100-{items}-20@{STRESS_LABELS}", vocab_size),
                load=load,
                is_gated=False,
                must_survive=True,
                tolerated=["out_of_memory"] if items == 200 else [],
            )


def matrix_cases(
    target: PlannedTarget,
    part: WorkloadPart,
    *,
    view: str,
    chunk_sizes: Sequence[int],
    algorithms: Sequence[str],
    masks: Sequence[str],
    cache: Cache,
    warmups: int,
) -> Iterator[Case]:
    """Yield a case for every layout and chunk size: the client cuts the request, or in `best-native` the server."""
    for algorithm, mask, size in itertools.product(algorithms, masks, chunk_sizes):
        layout: dict[str, str | int] = {"scoring_algorithm": algorithm, "mask_impl": mask}
        layout = {name: value for name, value in layout.items() if value != "auto"}
        if view == "best-native" and size:
            layout["multi_item_scoring_chunk_size"] = size
        chosen = [str(value) for value in (algorithm, mask) if value != "auto"]
        yield Case(
            name="-".join(["chunk", str(size), *chosen]),
            target=target.name,
            workload=part,
            cache=cache,
            warmups=warmups,
            chunk_items=size if view == "portable" and size < part.num_items else 0,
            layout=layout,
        )


def compare_cases(
    targets: Sequence[PlannedTarget],
    name: str,
    vocab_size: int | None,
    chunk_sizes: Sequence[int],
    slow_items: Mapping[str, int],
) -> Iterator[Case]:
    """Yield a case for every target and size of its calls; slow targets are asked for the first items only."""
    for target in targets:
        part = workload_part(name, vocab_size, softmax=True, items=slow_items.get(target.name))
        for size in sorted({min(size, part.num_items) for size in chunk_sizes or [part.num_items]}):
            is_whole = size == part.num_items
            yield Case(
                name=target.name if is_whole else f"{target.name}, calls of {size}",
                target=target.name,
                workload=part,
                chunk_items=0 if is_whole else size,
                is_partial=target.name in slow_items,
            )


def sweep_cases(
    targets: Sequence[PlannedTarget],
    name: str,
    vocab_size: int | None,
    *,
    rates: Sequence[float],
    concurrencies: Sequence[int],
    max_concurrency: int | None,
    requests: int,
    cache: Cache,
) -> Iterator[Case]:
    """Yield a case for every target and load; scores are checked under the first of each target."""
    part = workload_part(name, vocab_size)
    loads = [Load(requests=max(requests, callers), max_concurrency=callers) for callers in concurrencies]
    loads += [Load(requests=requests, max_concurrency=max_concurrency, rate=rate) for rate in rates]
    for target in targets:
        for number, load in enumerate(loads):
            what = f"{load.rate:g}/s" if load.rate else f"x{load.max_concurrency}"
            yield Case(
                name=f"{target.name} {what}",
                target=target.name,
                workload=part,
                load=load,
                cache=cache,
                warmups=load.max_concurrency or 1,
                is_gated=number == 0,
            )
