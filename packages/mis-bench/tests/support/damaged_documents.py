"""What may be wrong with validations and profiles."""

import gzip
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import get_args

from damages import Damage, Fields, cut, edited, emptied, gone, of_results
from mis_bench.manifest import Kind
from mis_bench.results.plan import Preset


def _model(change: Callable[[Fields], object]) -> Callable[[Path], object]:
    return edited("validation.json", lambda validation: change(validation["models"][0]))


def of_validation() -> Iterator[Damage]:
    """Yield what may be wrong with a validation."""
    yield Damage("no validation", gone("validation.json"), "^validation.json: it is missing")
    yield Damage("a cut validation", cut("validation.json"), "^validation.json:")
    yield Damage("no gates", _model(lambda m: m.update(gates=[])), "models.0.gates has no isolation.repetition")
    for index in range(24):
        yield Damage(
            f"gate {index} left out",
            _model(lambda m, i=index: m["gates"].pop(i)),
            "validation.json: models.0.gates has no ",
        )
    yield Damage("a gate twice", _model(lambda m: m["gates"].append(m["gates"][0])), "twice")
    yield Damage("a gate of another name", _model(lambda m: m["gates"][0].update(name="x")), "which is not a gate")
    for index in (0, 10, 11, 14, 17, 23):
        yield Damage(
            f"edited limit of gate {index}", _model(lambda m, i=index: m["gates"][i].update(threshold=0.5)),
            "validation.json: models.0.gates: threshold of .* is 0.5, but it must be",
        )  # fmt: skip
    yield Damage("another rule", _model(lambda m: m["gates"][0].update(rule="at least")), "rule of isolation")
    yield Damage("a gate waived", _model(lambda m: m["gates"][0].update(is_waived=True)), "is_waived of isolation")
    yield Damage("no reason", _model(lambda m: m["gates"][0].update(measured=None, detail="")), "does not say why")
    yield Damage("an edited speed-up", _model(lambda m: m["gates"][23].update(measured=99.0)), "but timings make it")
    yield Damage("an interruption", _model(lambda m: m.update(is_whole=False)), "it was interrupted")
    yield Damage("another type", _model(lambda m: m.update(dtype="int8")), "dtype is int8, but about says bfloat16")
    yield Damage("a timing less", _model(lambda m: m["timings"].pop(0)), "timings: 1 items were to be timed, once")
    yield Damage(
        "a timed request less", _model(lambda m: m["timings"][0]["multi_ms"].pop()), "were to be timed 3 times"
    )
    yield Damage("no model", edited("validation.json", lambda v: v.update(models=[])), "which has 0 validations")
    yield Damage("another plan", edited("validation.json", lambda v: v["planned"].append("x")), "planned has x")
    yield Damage(
        "no numbers of items",
        edited("validation.json", lambda v: v.update(speedup_items=None)),
        "speedup_items is missing",
    )
    yield Damage(
        "fewer numbers of items", edited("validation.json", lambda v: v["speedup_items"].pop()), "performance.32"
    )
    yield Damage(
        "a validation of the format before",
        edited("validation.json", lambda v: v.update(schema_version="mis-validation-v2")), "schema_version",
    )  # fmt: skip
    yield Damage("what a gate measured", _model(lambda m: m["gates"][0].update(measured=0.25)), None)
    yield Damage(
        "PyTorch's own rounding, with the limits that follow",
        _model(lambda m: [m.update(rounding=[1.0, 1.0, 1.0]), [_loosened(gate) for gate in m["gates"]]]), None,
    )  # fmt: skip


def _loosened(gate: Fields) -> None:
    if gate["name"].startswith(("equivalence", "sensitivity.swapped")) or "_vs_torch_" in gate["name"]:
        gate["threshold"] = 2.0


XPLANE, PERFETTO = "traces/host.xplane.pb", "traces/host.trace.json.gz"


def of_profile() -> Iterator[Damage]:
    """Yield what may be wrong with a profile that has a trace."""
    profile = "profile.json"
    yield Damage("no profile", gone(profile), "^profile.json: it is missing")
    yield Damage("a cut profile", cut(profile), "^profile.json:")
    for file in (XPLANE, PERFETTO):
        yield Damage(f"no {file}", gone(file), f"^{file}: it is missing")
        yield Damage(f"{file} emptied", emptied(file), f"^{file}: it is empty")
        yield Damage(f"a cut {file}", cut(file), f"^{file}")
    yield Damage(
        "no traces named", edited(profile, lambda p: p.update(traces=[])), r"profile.json: traces has no \*.xplane.pb"
    )
    yield Damage(
        "a trace outside", edited(profile, lambda p: p["traces"].append("../x.gz")), "not a file below the folder"
    )
    yield Damage(
        "a timed request less", edited(profile, lambda p: p["points"][0]["timed"].pop()), "points.0.timed has 2"
    )
    yield Damage(
        "a profiled one less", edited(profile, lambda p: p["points"][0]["profiled"].pop()), "points.0.profiled has 0"
    )
    yield Damage("a point less", edited(profile, lambda p: p["points"].pop()), "profile.json: points are of")
    yield Damage("no plan", edited(profile, lambda p: p.update(planned=None)), "planned is missing")
    yield Damage(
        "a checksum of zeros", edited(profile, lambda p: p["points"][0]["workload"].update(sha256="0" * 64)),
        "profile.json: points.0.workload.sha256",
    )  # fmt: skip
    yield Damage(
        "an edited stage", edited(profile, lambda p: p["stages"][0].update(ms=99.0)), "profile.json: stages.0.ms is 99"
    )
    yield Damage("a stage less", edited(profile, lambda p: p["stages"].pop()), "profile.json: stages.")
    yield Damage(
        "an edited operation", edited(profile, lambda p: p["operations"][0].update(count=9)), "operations.0.count is 9"
    )
    yield Damage(
        "an edited share", edited(profile, lambda p: p["device"].update(busy_ms=9.0)), "profile.json: device.busy_ms"
    )
    yield Damage("an edited mark", edited(profile, lambda p: p["host"][0].update(ms=9.0)), "profile.json: host.0.ms")
    yield Damage(
        "another scenario",
        edited(profile, lambda p: p.update(scenario="memory")),
        "memory must have what was loaded",
    )
    yield Damage(
        "a profile of the format before", edited(profile, lambda p: p.update(schema_version="mis-profile-v2")),
        "^profile.json: schema_version",
    )  # fmt: skip
    yield Damage("the time of a request", edited(profile, lambda p: p["points"][0]["timed"][0].update(ms=1.0)), None)
    yield Damage("what Perfetto shows", lambda folder: (folder / PERFETTO).write_bytes(gzip.compress(b"{}")), None)


def of_memory() -> Iterator[Damage]:
    """Yield what may be wrong with a profile of memory."""
    profile = "profile.json"
    yield Damage("no memory profile", gone("memory/loaded.pprof"), "^memory/loaded.pprof: it is missing")
    yield Damage("a memory profile emptied", emptied("memory/served.pprof"), "^memory/served.pprof: it is empty")
    yield Damage("a report less", edited(profile, lambda p: p["memory"].pop()), "memory must have what was loaded")
    yield Damage("sizes of tensors", edited(profile, lambda p: p["memory"][0].update(process_mib=1.0)), None)


DAMAGES: dict[Kind, Callable[[], Iterator[Damage]]] = {
    **{preset: lambda preset=preset: of_results(preset) for preset in get_args(Preset)},
    "validate": of_validation,
    "profile": of_profile,
}
