"""Where the time of a trace went: by stage, by layer, by operation, and between host and devices.

Times are sums over operations, each from its beginning to its end. Operations that run at once, as on several
threads of a CPU, all count in full, so shares are of the sum and not of the clock.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from mis_bench.profile.records import DeviceTime, OperationTime, Slice, share_of
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


def by_stage(operations: Sequence[Operation]) -> list[Slice]:
    """Add up operations by stage, in the order of `STAGES`; stages that did not run are left out."""
    times: dict[str, list[float]] = defaultdict(list)
    for each in operations:
        times[stage_of(each.scope)].append(_ms(each))
    return _slices({stage: times[stage] for stage in STAGES if stage in times}, operations)


def by_layer(operations: Sequence[Operation]) -> list[Slice]:
    """Add up operations by layer.

    All layers but the last are one loop, whose body is compiled once; so an operation's place among its runs in
    a step tells the layer. Where it did not run equally often in each, the layer is `unknown`.
    """
    runs: dict[tuple[str, int, str], list[Operation]] = defaultdict(list)
    times: dict[int | None, list[float]] = defaultdict(list)
    last: list[float] = []
    for each in operations:
        parts = each.scope.split("/")
        if _LOOP in parts:
            runs[each.device, each.run, f"{each.program} {each.name}"].append(each)
        elif _LAST in parts:
            last.append(_ms(each))
    # What lies directly in the loop's body runs once in each turn.
    direct = Counter(len(group) for group in runs.values() if _is_direct(group[0]))
    turns = direct.most_common(1)[0][0] if direct else 0
    for group in runs.values():
        each_turn, left = divmod(len(group), turns) if turns else (0, 1)
        for number, each in enumerate(sorted(group, key=lambda x: x.begin_ns)):
            times[number // each_turn if not left and each_turn else None].append(_ms(each))
    if last:
        times[turns] += last
    order = sorted(times, key=lambda layer: (layer is None, layer or 0))
    return _slices({"unknown" if layer is None else str(layer): times[layer] for layer in order}, operations)


def by_operation(operations: Sequence[Operation], most: int = 20) -> list[OperationTime]:
    """Return the operations that took longest in all, with how often they ran."""
    groups: dict[tuple[str, str, str], list[Operation]] = defaultdict(list)
    for each in operations:
        groups[each.program, each.name, each.scope].append(each)
    all_ms = list(map(_ms, operations))
    found = [
        OperationTime(
            operation=name,
            program=program,
            kind=group[0].kind,
            stage=stage_of(scope),
            scope=scope,
            runs=len(group),
            ms=sum(map(_ms, group)),
            share=share_of(sum(map(_ms, group)), all_ms),
        )
        for (program, name, scope), group in groups.items()
    ]
    return sorted(found, key=lambda each: -each.ms)[:most]


def by_mark(marks: Iterable[Mark]) -> list[Slice]:
    """Add up the spans that the host marked, by name; `mis.wait` is waiting for the device."""
    times: dict[str, list[float]] = defaultdict(list)
    for mark in marks:
        times[mark.name].append((mark.end_ns - mark.begin_ns) * _MS)
    return [Slice(name=name, ms=sum(ms), share=None, count=len(ms)) for name, ms in sorted(times.items())]


def device_time(trace: Trace, begin_ns: float, end_ns: float) -> DeviceTime:
    """Split a span of time into what devices were busy in and what they were idle in, on average over devices."""
    spans: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for each in trace.operations:
        if each.end_ns > begin_ns and each.begin_ns < end_ns:
            spans[each.device].append((max(each.begin_ns, begin_ns), min(each.end_ns, end_ns)))
    busy = sum(map(covered, spans.values())) / max(1, len(spans)) * _MS
    return DeviceTime(wall_ms=(end_ns - begin_ns) * _MS, busy_ms=busy)


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


def _slices(times: Mapping[str, Sequence[float]], operations: Sequence[Operation]) -> list[Slice]:
    all_ms = list(map(_ms, operations))
    return [Slice(name=name, ms=sum(ms), share=share_of(sum(ms), all_ms), count=len(ms)) for name, ms in times.items()]
