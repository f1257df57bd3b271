"""What may be wrong with a folder of evidence, by kind, and what the check must say of it."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, get_args

from mis_bench.manifest import MANIFEST, Kind, Manifest, seal
from mis_bench.results.folder import PLAN, RECORDS, SUMMARY
from mis_bench.results.plan import Preset

Lines = list[dict[str, Any]]
Fields = dict[str, Any]


class Damage(NamedTuple):
    """One thing that is wrong.

    Attributes:
        name: What was done.
        do: Does it to a folder.
        says: Pattern of what is said once the manifest is written anew; None: only a digest finds it.
        is_of_manifest: Whether it is the manifest that is damaged, and must stay so.
    """

    name: str
    do: Callable[[Path], object]
    says: str | None
    is_of_manifest: bool = False


def write_anew(folder: Path) -> None:
    """Write the manifest of what is there now, as somebody would who hides a change."""
    before = Manifest.model_validate_json((folder / MANIFEST).read_text())
    there = [each.path for each in before.files if (folder / each.path).exists()]
    if there:
        seal(folder, before.kind, there, before.derived)


def edited(file: str, change: Callable[[Fields], object]) -> Callable[[Path], object]:
    def do(folder: Path) -> None:
        fields = json.loads((folder / file).read_text())
        change(fields)
        (folder / file).write_text(json.dumps(fields))

    return do


def _records(change: Callable[[Lines], object]) -> Callable[[Path], object]:
    def do(folder: Path) -> None:
        path = folder / RECORDS
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        change(lines)
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))

    return do


def cut(file: str) -> Callable[[Path], object]:
    def do(folder: Path) -> None:
        content = (folder / file).read_bytes()
        (folder / file).write_bytes(content[: len(content) // 2])

    return do


def gone(file: str) -> Callable[[Path], object]:
    return lambda folder: (folder / file).unlink()


def emptied(file: str) -> Callable[[Path], object]:
    return lambda folder: (folder / file).write_bytes(b"")


def _of(lines: Lines, **fields: Any) -> Lines:
    """Records that have these fields."""
    return [line for line in lines if all(line.get(name) == value for name, value in fields.items())]


def _without(**fields: Any) -> Callable[[Path], object]:
    """Take the first record that has these fields out."""
    return _records(lambda lines: lines.remove(_of(lines, **fields)[0]))


def _set(where: Fields, **fields: Any) -> Callable[[Path], object]:
    """Give the first record that has the fields `where` others."""
    return _records(lambda lines: _of(lines, **where)[0].update(fields))


def _one_request(lines: Lines) -> None:
    """Keep one request of each timed window, and have windows agree."""
    for window in _of(lines, kind="window", phase="timed"):
        same = {"case": window["case"], "phase": "timed", "round": window["round"]}
        first, *others = sorted(_of(lines, kind="call", **same), key=lambda call: call["number"])
        for call in others:
            lines.remove(call)
        window |= {"calls": 1, "seconds": first["done_s"]}


def of_manifest() -> Iterator[Damage]:
    """Yield what may be wrong with the manifest itself."""
    yield Damage("no manifest", gone(MANIFEST), "there is no manifest.json: .* was interrupted", is_of_manifest=True)
    yield Damage("a cut manifest", cut(MANIFEST), "^manifest.json: ", is_of_manifest=True)
    yield Damage(
        "a manifest that names nothing", edited(MANIFEST, lambda m: m.update(files=[])), "files", is_of_manifest=True
    )
    yield Damage(
        "a manifest that names less", edited(MANIFEST, lambda m: m["files"].pop(0)), "files",
        is_of_manifest=True,
    )  # fmt: skip
    yield Damage(
        "a manifest of another kind",
        edited(MANIFEST, lambda m: m.update(kind="validate" if m["kind"] != "validate" else "profile")),
        "needs", is_of_manifest=True,
    )  # fmt: skip
    yield Damage(
        "a digest of zeros", edited(MANIFEST, lambda m: m["files"][0].update(sha256="0" * 64)), "SHA-256",
        is_of_manifest=True,
    )  # fmt: skip
    yield Damage(
        "a file outside",
        edited(MANIFEST, lambda m: m["files"][0].update(path="../x")),
        "files.0.path",
        is_of_manifest=True,
    )


def of_results(kind: Kind) -> Iterator[Damage]:
    """Yield what may be wrong with results, of any preset and of this one."""
    for file in (PLAN, RECORDS, SUMMARY):
        yield Damage(f"no {file}", gone(file), f"^{file}: it is missing")
        yield Damage(f"a cut {file}", cut(file), f"^{file}:")
    yield Damage("records emptied", emptied(RECORDS), "was not opened")
    yield Damage("a plan of the format before", edited(PLAN, lambda p: p.update(schema_version="mis-plan-v1")), PLAN)
    yield Damage(
        "a summary of the format before", edited(SUMMARY, lambda s: s.update(schema_version="mis-summary-v1")), SUMMARY
    )
    yield Damage("another preset", edited(PLAN, lambda p: p.update(preset=_other(p["preset"]))), "plan.json: preset is")
    yield Damage(
        "a checksum of zeros", edited(PLAN, lambda p: p["cases"][0]["workload"].update(sha256="0" * 64)),
        r"plan.json: cases.0.workload.sha256 is 0000",
    )  # fmt: skip
    yield Damage(
        "items of a workload", edited(PLAN, lambda p: p["cases"][0]["workload"].update(num_tokens=1)),
        r"plan.json: cases.0.workload.num_tokens is 1",
    )  # fmt: skip
    yield Damage("a case twice", edited(PLAN, lambda p: p["cases"].append(p["cases"][0])), "is planned twice")
    yield Damage(
        "more rounds planned", edited(PLAN, lambda p: p.update(rounds=p["rounds"] + 1)), "has no window of round"
    )
    yield Damage("more repetitions planned", edited(PLAN, lambda p: p.update(repeat=p["repeat"] + 1)), "was not opened")
    yield Damage("edited limits of scores", edited(PLAN, lambda p: p["limits"].update(max_abs=9.0)), "limits.max_abs")
    yield Damage("an edited gate", edited(PLAN, lambda p: p["gates"].update(max_p99_ms=9e9)), "gates.max_p99_ms")
    yield Damage("an edited objective", edited(PLAN, lambda p: p.update(slo_p99_ms=9e9)), "slo_p99_ms|goodput")
    yield Damage("an edited figure", edited(SUMMARY, _faster), r"summary.json: rows.0.items_per_second.value is")
    yield Damage("a verdict", edited(SUMMARY, lambda s: s.update(passed=not s["passed"])), "summary.json: passed is")
    yield Damage("a row less", edited(SUMMARY, lambda s: s["rows"].pop()), "summary.json: rows.")
    yield Damage("a finding", edited(SUMMARY, lambda s: s["findings"].append("a wins")), "summary.json: findings.")
    timed = {"kind": "call", "phase": "timed"}
    yield Damage("a request less", _without(**timed), r"records.jsonl:\d+: the window of .* has")
    yield Damage(
        "a request twice", _records(lambda lines: lines.insert(1, dict(_of(lines, **timed)[0]))), "records.jsonl:"
    )
    yield Damage("a window less", _without(kind="window", phase="timed"), r"records.jsonl: .* has no window of round 1")
    yield Damage("no record of the target", _without(kind="opened"), "records.jsonl: .* was not opened in repetition")
    yield Damage("no request answered", _set(timed, error="timeout"), r"summary.json: rows.0.failures.timeout")
    yield Damage("another case", _set(timed, case="c"), r"records.jsonl:\d+: c is not in the plan")
    yield Damage(
        "a longer window", _set({"kind": "window", "phase": "timed"}, seconds=9.0), r"records.jsonl:\d+: .* took 9 s"
    )
    yield Damage(
        "a later answer", _set(timed, done_s=99.0), r"records.jsonl:\d+: .* its last request was over after 99 s"
    )
    if kind not in ("callers", "decisions"):  # whose first case is the one of these
        yield Damage("another item", _set(timed, items=77), r"records.jsonl:\d+: request \d+ of .* items, not 77")
    if kind not in ("stress", "trace"):
        yield Damage("no check of isolation", _without(kind="gate", name="isolation"), "has no check of isolation")
        yield Damage(
            "a check without figures",
            _records(lambda lines: [_of(lines, kind="gate")[0].pop(name) for name in ("max_abs", "mean_abs")]),
            r"records.jsonl:\d+: the check of isolation of .* has no figures",
        )
    if kind not in ("callers", "decisions"):
        yield Damage("no warm-up", _without(kind="window", phase="warmup"), "records.jsonl: .* has no warm-up")
    if kind in ("run", "sweep", "perf"):
        yield Damage(
            "fewer requests", _records(_one_request), r"records.jsonl:\d+: .* has 1 requests, but \d+ were planned"
        )
    if kind in ("callers", "compare", "matrix", "sweep", "perf"):
        yield Damage(
            "no check of correctness", _without(kind="gate", name="correctness"), "has no check of correctness"
        )
        yield Damage(
            "no differences", _records(_no_difference), r"records.jsonl:\d+: request \d+ of .* tells no difference"
        )
    if kind == "stress":
        yield Damage(
            "nothing asked afterwards", _without(kind="call", phase="afterwards"), "was asked nothing after round"
        )
    if kind == "matrix":
        yield Damage("no confirmation", _without(kind="window", phase="confirm"), "has no window of round .* confirm")
    if kind == "callers":
        yield Damage("a product rate less", _without(kind="product_rate"), "has no product rate in round 1")
        yield Damage("another rate", _records(_another_rate), r"records.jsonl:\d+: the rate of .* is 1.0, but")
    if kind in ("trace", "sweep", "callers"):
        yield Damage("another due time", _records(_another_due), r"records.jsonl:\d+: request \d+ of .* was due after")
    yield Damage("the command line", edited(PLAN, lambda p: p.update(command="mis-bench run")), None)
    yield Damage("notes", edited(PLAN, lambda p: p.update(notes=["Measured on a quiet machine."])), None)
    yield Damage("the machine's memory, and versions", edited(PLAN, _environment), None)
    yield Damage("stages of a request", _set(timed, stages_ms={"device": 9.0, "engine": 1.0, "cpu": 1.0}), None)
    yield Damage("when a window began", _set({"kind": "window"}, began="2026-01-01T00:00:00Z"), None)


def _other(preset: str) -> str:
    return next(each for each in get_args(Preset) if each != preset)


def _faster(summary: Fields) -> None:
    summary["rows"][0]["items_per_second"]["value"] = 99999.0


def _environment(plan: Fields) -> None:
    plan["environment"]["memory_bytes"] = 1
    plan["environment"]["versions"] = {}


def _no_difference(lines: Lines) -> None:
    call = next(line for line in lines if line["kind"] == "call" and line["phase"] == "timed" and "max_abs" in line)
    del call["max_abs"], call["mean_abs"]


def _another_rate(lines: Lines) -> None:
    next(line for line in lines if line["kind"] == "window" and line.get("rate")).update(rate=1.0)


def _another_due(lines: Lines) -> None:
    call = next(line for line in lines if line["kind"] == "call" and line.get("due_s"))
    call["due_s"] *= 0.5
