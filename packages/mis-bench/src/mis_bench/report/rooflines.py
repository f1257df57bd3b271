"""Points under rooflines: how much arithmetic a byte pays for, and how much arithmetic a second brings.

The operations are those that a request needs at least (`mis_core.aot.roofline`), not those that a program makes, so
that a point moves up only if requests get faster. The bytes are the layers' weights, read once a request.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mis_bench.demand import build
from mis_bench.environment import is_cpu
from mis_bench.report.page import Section
from mis_bench.report.plots import Axis, Plot, Series, lines
from mis_bench.report.results import short
from mis_bench.report.sources import Measured, Sources
from mis_bench.table import Table
from mis_bench.workload import Workload, build_workload
from mis_core.aot.roofline import least_bytes, least_flops
from mis_core.errors import ModelError
from mis_core.models.config import ModelConfig, read_model_config
from mis_core.models.published import PUBLISHED
from mis_kernels.aot.chips import CHIPS, chip_of

_TERA = 1e12


@dataclass(frozen=True, slots=True)
class Roof:
    """What one device can do at most: operations a second, and bytes a second to and from its memory."""

    name: str
    flops: float
    bytes: float

    def at(self, intensity: float) -> float:
        """Return the operations a second that an intensity allows."""
        return min(self.flops, intensity * self.bytes)


@dataclass(frozen=True, slots=True)
class _Point:
    name: str
    series: str
    intensity: float  # operations a byte
    flops: float  # a second, on one device
    roof: Roof | None

    @property
    def limit(self) -> float | None:
        return None if self.roof is None else self.roof.at(self.intensity)


def section(sources: Sources, roofs: Mapping[str, Roof]) -> Section | None:
    """Return the section; None if there is no point.

    Left out are rows whose query was not computed, rows of texts, whose tokens are not known, and rows of models whose
    shape is not known: neither their folder nor a published model of their name is here.

    Args:
        sources: Results and estimates.
        roofs: Of the hardware of runs, by its name in their environment or by `cpu`.
    """
    found = [*_estimated(sources), *(point for each in sources.measured for point in _measured(each, roofs))]
    if not found:
        return None
    columns = {
        "what": lambda point: point.name,
        "FLOP per byte": lambda point: point.intensity,
        "TFLOP/s": lambda point: point.flops / _TERA,
        "roof TFLOP/s": lambda point: point.limit and point.limit / _TERA,
        "share of the roof": lambda point: point.limit and f"{point.flops / point.limit:.1%}",
    }
    reading = (
        "A point on its line could not be faster: under the flat part arithmetic limits it, under the slope memory. "
        "Operations are the fewest that a request needs, with its query computed once; bytes are the layers' weights, "
        "read once a request. Both are for one device."
    )
    axes = Axis("Intensity in FLOP per byte"), Axis("TFLOP/s of a device")
    return Section("Roofline", [Plot(lines(_series(found), *axes), reading)], [Table.of(_CAPTION, found, columns)])


_CAPTION = "Distance from the roof"


def _series(found: Sequence[_Point]) -> list[Series]:
    roofs = {point.roof.name: point.roof for point in found if point.roof is not None}
    ends = [point.intensity for point in found] + [roof.flops / roof.bytes for roof in roofs.values()]
    series = []
    for name in dict.fromkeys(point.series for point in found):
        mine = [point for point in found if point.series == name]
        xs, ys = [point.intensity for point in mine], [point.flops / _TERA for point in mine]
        series.append(Series(name, xs, ys, notes=[point.name for point in mine], style="points"))
    for name, roof in roofs.items():
        xs = [min(ends) / 3, roof.flops / roof.bytes, max(ends) * 3]
        series.append(Series(f"roof of {name}", xs, [roof.at(x) / _TERA for x in xs], style="guide"))
    return series


def _estimated(sources: Sources) -> Iterator[_Point]:
    for _, each in sources.estimates:
        chip = each.topology.partition(":")[0]
        config, workload = PUBLISHED.get(each.model), build_workload(each.workload)
        if config is None or chip not in CHIPS:
            continue
        flops = least_flops(config, workload.request, normalised=not each.apply_softmax) / (each.dp * each.tp)
        name, rate = f"{each.model} on {each.topology}, estimated", each.items_per_second / workload.num_items
        yield _Point(name, name, flops * each.tp / least_bytes(config), flops * rate, _chip_roof(chip))


def _measured(source: Measured, roofs: Mapping[str, Roof]) -> Iterator[_Point]:
    about = {each.target: each.about for each in source.results.opened if each.about is not None}
    for row in source.drawn:
        config, rate = _shape(row.model), row.requests_per_second
        workload = None if row.cache == "warm" else _workload(source, row.case)
        if row.target not in about or config is None or workload is None or rate is None:
            continue
        options = about[row.target].options
        devices = int(options.get("tp_size") or 1) * int(options.get("dp_size") or 1)
        flops = least_flops(config, workload.request, normalised=not workload.apply_softmax) / devices
        size = least_bytes(config) * (2 if row.dtype == "float32" else 1) / devices
        name, roof = f"{row.target}, {row.workload}", _roof(row.hardware, roofs)
        yield _Point(name, f"{row.target}, measured", flops / size, flops * rate.value, roof)


def _roof(hardware: str, roofs: Mapping[str, Roof]) -> Roof | None:
    """Return the roof that the user gave for some hardware, or that of a known chip, or the one given for CPUs."""
    if hardware in roofs:
        return roofs[hardware]
    if chip := chip_of(hardware):
        return _chip_roof(chip)
    return roofs.get("cpu") if is_cpu(hardware) else None


def _chip_roof(name: str) -> Roof:
    return Roof(name, CHIPS[name].flops, CHIPS[name].bytes)


def _shape(model: str | None) -> ModelConfig | None:
    """Return the shape of a model by its folder, or by its name if it is a published one."""
    if model is not None and (Path(model) / "config.json").is_file():
        try:
            return read_model_config(Path(model))
        except ModelError:
            return None
    return PUBLISHED.get(short(model or "").lower())


def _workload(source: Measured, case: str) -> Workload | None:
    """Build a case's first request, if it has token ids and its name decides them."""
    if source.plan.preset == "trace":
        return None
    built = build(source.plan.case(case).workload)
    return None if isinstance(built.query, str) else built
