"""Where the time of a trace went: by stage, by layer, by operation, and between host and devices.

Times are sums over operations, each from its beginning to its end. Operations that run at once, as on several
threads of a CPU, all count in full, so shares are of the sum and not of the clock.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from mis_bench.artifacts.profile import DeviceTime, HostTime, LayerTime, OperationTime, StageTime
from mis_bench.profile.trace import Mark, Operation, Trace

UNATTRIBUTED = "unattributed"
"""Operations without a scope of the model: what the compiler made, and programs beside the model's."""

STAGES = (
    "embed", "rotary_tables", "norm", "qkv", "norm_rope", "write_pages", "attention", "out", "gate_up", "down",
    "rest_of_layers", "final_norm", "label_logits", "log_sum_exp", UNATTRIBUTED,
)  # fmt: skip
"""Stages in the order in which a step goes through them; `rest_of_layers` is their loop and what it copies."""

_MS = 1e-6  # of nanoseconds
_LOOP = "layers"
_LAST = "last_layer"


def stage_of(scope: str) -> str:
    """Return the stage of an operation from the named scopes it was traced under, the innermost first."""
    parts = scope.split("/")
    for part in reversed(parts):
        for kernel in ("attention", "norm_rope"):
            if part.startswith(f"{kernel}_"):
                return kernel
        if part in STAGES and part != "attention":
            return part
    return "rest_of_layers" if _LOOP in parts or _LAST in parts else UNATTRIBUTED


def by_stage(operations: Sequence[Operation]) -> list[StageTime]:
    """Add up operations by stage, in the order of `STAGES`; stages that did not run are left out."""
    times: dict[str, float] = defaultdict(float)
    counts: Counter[str] = Counter()
    for each in operations:
        stage = stage_of(each.scope)
        times[stage] += _ms(each)
        counts[stage] += 1
    total = sum(times.values())
    return [
        StageTime(stage=stage, ms=times[stage], share=_share(times[stage], total), operations=counts[stage])
        for stage in STAGES
        if stage in times
    ]


def by_layer(operations: Sequence[Operation]) -> list[LayerTime]:
    """Add up operations by layer.

    All layers but the last are one loop, whose body is compiled once; so an operation's place among its runs in
    a step tells the layer. Where it did not run equally often in each, the layer is unknown: None.
    """
    runs: dict[tuple[str, int, str], list[Operation]] = defaultdict(list)
    times: dict[int | None, float] = defaultdict(float)
    last_ms, has_last = 0.0, False
    for each in operations:
        parts = each.scope.split("/")
        if _LOOP in parts:
            runs[each.device, each.run, f"{each.program} {each.name}"].append(each)
        elif _LAST in parts:
            last_ms, has_last = last_ms + _ms(each), True
    # What lies directly in the loop's body runs once in each turn.
    direct = Counter(len(group) for group in runs.values() if _is_direct(group[0]))
    turns = direct.most_common(1)[0][0] if direct else 0
    for group in runs.values():
        each_turn, left = divmod(len(group), turns) if turns else (0, 1)
        for number, each in enumerate(sorted(group, key=lambda x: x.begin_ns)):
            times[number // each_turn if not left and each_turn else None] += _ms(each)
    if has_last:
        times[turns] += last_ms
    total = sum(map(_ms, operations))
    return [
        LayerTime(layer=layer, ms=times[layer], share=_share(times[layer], total))
        for layer in sorted(times, key=lambda layer: (layer is None, layer or 0))
    ]


def by_operation(operations: Sequence[Operation], most: int = 20) -> list[OperationTime]:
    """Return the operations that took longest in all, with how often they ran."""
    groups: dict[tuple[str, str, str], list[Operation]] = defaultdict(list)
    for each in operations:
        groups[each.program, each.name, each.scope].append(each)
    total = sum(map(_ms, operations))
    found = [
        OperationTime(
            operation=name,
            program=program,
            kind=group[0].kind,
            stage=stage_of(scope),
            scope=scope,
            runs=len(group),
            ms=sum(map(_ms, group)),
            share=_share(sum(map(_ms, group)), total),
        )
        for (program, name, scope), group in groups.items()
    ]
    return sorted(found, key=lambda each: -each.ms)[:most]


def by_mark(marks: Iterable[Mark]) -> list[HostTime]:
    """Add up the spans that the host marked, by name; `mis.wait` is waiting for the device."""
    groups: dict[str, list[Mark]] = defaultdict(list)
    for mark in marks:
        groups[mark.name].append(mark)
    return [
        HostTime(mark=name, ms=sum(mark.end_ns - mark.begin_ns for mark in group) * _MS, marks=len(group))
        for name, group in sorted(groups.items())
    ]


def device_time(trace: Trace, begin_ns: float, end_ns: float) -> DeviceTime:
    """Split a span of time into what devices were busy in and what they were idle in, on average over devices."""
    spans: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for each in trace.operations:
        if each.end_ns > begin_ns and each.begin_ns < end_ns:
            spans[each.device].append((max(each.begin_ns, begin_ns), min(each.end_ns, end_ns)))
    busy = sum(map(covered, spans.values())) / max(1, len(spans)) * _MS
    wall = (end_ns - begin_ns) * _MS
    return DeviceTime(wall_ms=wall, busy_ms=busy, idle_ms=wall - busy, busy_share=_share(busy, wall))


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """Return the length of the union of spans."""
    length, until = 0.0, float("-inf")
    for begin, end in sorted(spans):
        length += max(0.0, end - max(begin, until))
        until = max(until, end)
    return length


def _is_direct(operation: Operation) -> bool:
    inner = operation.scope.partition(f"/{_LOOP}/while/")[2]
    return bool(inner) and "while" not in inner.split("/")


def _ms(operation: Operation) -> float:
    return (operation.end_ns - operation.begin_ns) * _MS


def _share(part: float, whole: float) -> float:
    return min(1.0, part / whole) if whole > 0 else 0.0
