"""Whether records fit their plan, and a stored summary its records."""

import datetime
import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

from mis_bench.artifact import ArtifactError, read_artifact
from mis_bench.demand import ENDLESS, build
from mis_bench.judging import to_confirm
from mis_bench.records import PLAN, SUMMARY, Call, Case, Plan, Results, Window, WorkloadPart, read_results
from mis_bench.summary import Summary, summarize
from mis_bench.workload import WorkloadNameError
from mis_bench.workloads.traces import arrival_times, build_trace

SLACK_S = 0.05
"""What two clocks may differ by: windows begin by the wall's, and last by a steady one."""


@dataclass(frozen=True, slots=True)
class Checked:
    """A file or folder, and what is wrong with it.

    Attributes:
        path: Where.
        kind: Its schema.
        faults: One sentence each.
    """

    path: Path
    kind: str
    faults: list[str] = field(default_factory=list)


def check_path(path: Path, *, below: bool) -> list[Checked]:
    """Check a file, or everything in a folder.

    Args:
        path: Of either.
        below: Whether to look into folders below as well.
    """
    if path.is_file():
        return [_check_folder(path.parent)] if path.name == PLAN else [_check_file(path)]
    folders = sorted({plan.parent for plan in path.glob(f"**/{PLAN}" if below else PLAN)})
    files = sorted(path.glob("**/*.json" if below else "*.json"))
    others = [file for file in files if file.parent not in folders and "schema_version" in _fields(file)]
    return [*(_check_folder(folder) for folder in folders), *(_check_file(file) for file in others)]


def faults_of(results: Results) -> Iterator[str]:
    """Yield every way in which records do not fit their plan, one sentence each."""
    plan = results.plan
    names = {case.name for case in plan.cases}
    targets = {target.name for target in plan.targets}
    for each, count in Counter(case.name for case in plan.cases).items():
        if count > 1:
            yield f"plan: the case {each} is there {count} times"
    if plan.started > _now():
        yield f"plan: started is {plan.started.isoformat()}, in the future"
    for part in {case.workload.name: case.workload for case in plan.cases}.values():
        yield from _workload_faults(part)
    unknown = [record for record in results.records if getattr(record, "case", None) not in {*names, None}]
    unknown += [record for record in results.opened if record.target not in targets]
    if unknown:
        yield f"records: {len(unknown)} belong to no case or target of the plan"
        return
    if plan.took_turns:
        yield from _overlaps(plan, results.windows)
    calls: dict[tuple[str, str, int], list[Call]] = defaultdict(list)
    for call in results.calls:
        calls[call.case, call.phase, call.round].append(call)
    confirmed = to_confirm(plan, summarize(results).rows) if plan.confirm_rounds else []
    for case in plan.cases:
        mine = [window for window in results.windows if window.case == case.name]
        yield from (f"{case.name}: {fault}" for fault in _case_faults(results, case, mine, calls, confirmed))
    counted = {(window.case, window.phase, window.round) for window in results.windows}
    loose = [key for key in calls if key not in counted and key[1] != "afterwards"]
    if loose:
        yield f"records: calls of {len(loose)} windows, but no record of these windows"


def _check_folder(folder: Path) -> Checked:
    try:
        results = read_results(folder)
        faults = list(faults_of(results))
        if not faults:
            faults += _summary_faults(folder, results)
    except ArtifactError as error:
        faults = [str(error)]
    return Checked(folder, Plan.SCHEMA, faults)


def _check_file(path: Path) -> Checked:
    try:
        artifact = read_artifact(path)
    except ArtifactError as error:
        return Checked(path, "", [str(error)])
    return Checked(path, artifact.SCHEMA, list(artifact.faults()))


def _summary_faults(folder: Path, results: Results) -> Iterator[str]:
    if not (folder / SUMMARY).exists():
        yield f"there is no {SUMMARY}: the run was interrupted"
        return
    stored, anew = read_artifact(folder / SUMMARY), summarize(results)
    if not isinstance(stored, Summary):
        yield f"{SUMMARY} is no {Summary.SCHEMA}"
        return
    ours, theirs = anew.model_dump(exclude={"generated_by"}), stored.model_dump(exclude={"generated_by"})
    yield from (f"{SUMMARY}: {difference}" for difference in islice(_unlike(ours, theirs, ""), 10))


def _unlike(anew: Any, stored: Any, where: str) -> Iterator[str]:
    """Yield where stored figures are not those that the records make, rounding aside."""
    if isinstance(anew, dict) and isinstance(stored, dict) and anew.keys() == stored.keys():
        for name, value in anew.items():
            yield from _unlike(value, stored[name], f"{where}.{name}".lstrip("."))
    elif isinstance(anew, list) and isinstance(stored, list) and len(anew) == len(stored):
        for number, (mine, theirs) in enumerate(zip(anew, stored, strict=True)):
            yield from _unlike(mine, theirs, f"{where}.{number}")
    elif isinstance(anew, float) and isinstance(stored, float | int):
        if not math.isclose(anew, stored, rel_tol=1e-9, abs_tol=1e-12):
            yield f"{where} is {stored}, but the records make it {anew}"
    elif anew != stored:
        yield f"{where} is {str(stored)[:80]}, but the records make it {str(anew)[:80]}"


def _workload_faults(part: WorkloadPart) -> Iterator[str]:
    """Yield what a workload's name would have made otherwise."""
    if part.is_recorded:
        return
    try:
        if ":" in part.name:
            trace = build_trace(part.name)
            found = (trace if part.vocab_size is None else trace.within(part.vocab_size)).sha256
        else:
            workload = build(part)
            found = workload.sha256
            if part != WorkloadPart.of(workload):
                yield f"workload {part.name}: its sizes are not those of its name"
    except WorkloadNameError as error:
        yield f"workload: {error}"
        return
    if found != part.sha256:
        yield f"workload {part.name}: sha256 is {part.sha256}, but its name makes it {found}"


def _overlaps(plan: Plan, windows: Sequence[Window]) -> Iterator[str]:
    """Yield windows that do not come one after the other: what is measured at once disturbs each other."""
    order = sorted(windows, key=lambda window: window.began)
    if order and order[0].began < plan.started:
        yield f"{order[0].case}: a window began before the plan"
    if order and order[-1].began > _now():
        yield f"{order[-1].case}: a window begins in the future"
    for before, after in pairwise(order):
        if before.seconds > (after.began - before.began).total_seconds() + SLACK_S:
            yield f"{after.case}: round {after.round} began before round {before.round} of {before.case} was over"


def _case_faults(
    results: Results,
    case: Case,
    windows: Sequence[Window],
    calls: dict[tuple[str, str, int], list[Call]],
    confirmed: Sequence[str],
) -> Iterator[str]:
    plan = results.plan
    if case.target not in {target.name for target in plan.targets}:
        yield f"its target {case.target} is not in the plan"
    is_open = any(each.target == case.target and each.about is not None for each in results.opened)
    if case.skip is not None or not is_open:
        if windows:
            yield "it has windows, but was not to be measured"
        return
    gates = [gate for gate in results.gates if gate.case == case.name]
    if case.is_gated and not {"isolation"} <= {gate.name for gate in gates}:
        yield "its scores were not checked"
    compared = plan.reference is None or any(gate.error or gate.name == "correctness" for gate in gates)
    if case.is_gated and not compared:
        yield "its scores were not held against the reference's"
    gave_up = any(gate.error is not None for gate in gates)
    for window in windows:
        mine = calls[case.name, window.phase, window.round]
        gave_up |= all(call.error is not None for call in mine)
        yield from (
            f"{window.phase} round {window.round}: {fault}" for fault in _window_faults(plan, case, window, mine)
        )
        if case.must_survive and window.phase == "timed" and len(calls[case.name, "afterwards", window.round]) != 1:
            yield f"round {window.round}: nothing shows that the target answered afterwards"
    rounds = {
        phase: sorted(window.round for window in windows if window.phase == phase) for phase in ("timed", "confirm")
    }
    wanted = {
        "timed": list(range(1, plan.repeat * plan.rounds + 1)),
        "confirm": list(plan.confirm_turns) if case.name in confirmed else [],
    }
    for phase, found in rounds.items():
        is_part = gave_up and set(found) <= set(wanted[phase]) and len(set(found)) == len(found)
        if plan.took_turns and found != wanted[phase] and not is_part:
            yield f"{phase} rounds are {found}, but the plan has {wanted[phase]}"


def _window_faults(plan: Plan, case: Case, window: Window, calls: Sequence[Call]) -> Iterator[str]:
    for call in calls:
        yield from (f"call {call.number}: {fault}" for fault in _call_faults(case, window, call))
    if window.phase == "warmup":  # one that compiled something is repeated
        if len(calls) < case.warmups:
            yield f"{len(calls)} warm-up calls, but the plan has {case.warmups}"
        return
    load, at_once, unprimed = case.load, _most_at_once(calls), case.cache == "warm" and not window.primed
    arrivals: dict[int, float] = {}
    if load.rate is not None:
        due = islice(arrival_times(f"{plan.seed} {window.round}", load.rate), len(calls))
        arrivals = dict(enumerate(due, (window.round - 1) * (load.requests or ENDLESS) + 1))
    most = load.max_concurrency or len(calls)
    rules = (
        (len(calls) != window.calls, f"{len(calls)} calls, but its record says {window.calls}"),
        (load.requests not in (None, window.calls), f"{window.calls} calls, but the plan has {load.requests}"),
        (unprimed and any(call.error is None for call in calls), "a warm case whose query was not asked for before"),
        (len({call.number for call in calls}) != len(calls), "requests repeat"),
        (at_once > most, f"{at_once} requests at once, but the plan has {most}"),
        (
            load.rate is not None and any(call.due_s != arrivals.get(call.number) for call in calls),
            "requests were not due when the plan's seed says",
        ),
    )
    yield from (sentence for is_broken, sentence in rules if is_broken)


def _call_faults(case: Case, window: Window, call: Call) -> Iterator[str]:
    part, is_trace = case.workload, case.load.requests is None and case.load.seconds is None
    late = window.phase != "warmup" and call.done_s > window.seconds + SLACK_S
    items = call.items if is_trace else part.num_items
    tokens = call.tokens if is_trace or part.name.startswith("text-") else part.num_tokens
    rules = (
        (call.sent_s > call.done_s, "was answered before it was sent"),
        (late, f"was over {call.done_s:.3f} s after the window began, which lasted {window.seconds:.3f} s"),
        (call.due_s is not None and call.sent_s < call.due_s - SLACK_S, "was sent before it was due"),
        (sum(call.chunks_s) > call.done_s - call.sent_s + SLACK_S, "took less time than its parts"),
        ((call.error is None) != (call.scores_sha256 is not None), "scores belong to answered requests alone"),
        (call.items != items, f"has {call.items} items, but the workload {items}"),
        (call.tokens != tokens, f"has {call.tokens} tokens, but the workload {tokens}"),
    )
    yield from (sentence for is_broken, sentence in rules if is_broken)


def _most_at_once(calls: Sequence[Call]) -> int:
    """Return how many requests were under way at a time; one may begin in the instant in which another ends."""
    steps = sorted([(call.sent_s, 1) for call in calls] + [(call.done_s, -1) for call in calls])
    most = now = 0
    for _, step in steps:
        now += step
        most = max(most, now)
    return most


def _fields(path: Path) -> dict[str, Any]:
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return fields if isinstance(fields, dict) else {}


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC) + datetime.timedelta(minutes=5)
