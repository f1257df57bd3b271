"""Points under rooflines: how much arithmetic a byte pays for, and how much arithmetic a second brings.

The operations are those that a request needs at least (`estimate.roofline.least_flops`), not those that a program
makes, so that a point moves up only if requests get faster. The bytes are the layers' weights, read once a request.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from mis_bench.artifacts.parts import WorkloadPart, prepared
from mis_bench.environment import is_cpu
from mis_bench.report.lines import is_measured, short_model
from mis_bench.report.sources import Sources
from mis_bench.workload import Workload, WorkloadNameError, build_workload
from mis_core.aot.roofline import least_bytes, least_flops
from mis_core.errors import ModelError
from mis_core.models.config import ModelConfig, read_model_config
from mis_core.models.published import PUBLISHED
from mis_kernels.aot.chips import CHIPS, chip_of


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
class Point:
    """A measurement or an estimate.

    Attributes:
        name: What.
        intensity: Operations a byte.
        flops: Operations a second on one device.
        roof: The device's, if known.
        estimated: Not measured.
    """

    name: str
    intensity: float
    flops: float
    roof: Roof | None
    estimated: bool


def points(sources: Sources, roofs: Mapping[str, Roof]) -> list[Point]:
    """Return the points of estimates and of rows of runs.

    Left out are rows whose query was not computed, rows of texts, whose tokens are not known, and rows of models whose
    shape is not known: neither their folder nor a published model of their name is here.

    Args:
        sources: Artifacts and estimates.
        roofs: Of the hardware of runs, by its name in their environment or by `cpu`.
    """
    return [*_estimated(sources), *_measured(sources, roofs)]


def _estimated(sources: Sources) -> Iterator[Point]:
    for source in sources.estimates:
        each = source.content
        chip_name = each.topology.partition(":")[0]
        config, workload = PUBLISHED.get(each.model), build_workload(each.workload)
        if config is None or chip_name not in CHIPS:
            continue
        flops = least_flops(config, workload.request, normalised=not each.apply_softmax) / (each.dp * each.tp)
        yield Point(
            f"{each.model} on {each.topology}, estimated",
            flops / (least_bytes(config) / each.tp),
            flops * each.items_per_second / workload.num_items,
            _chip_roof(chip_name),
            estimated=True,
        )


def _measured(sources: Sources, roofs: Mapping[str, Roof]) -> Iterator[Point]:
    for source in sources.runs:
        run = source.content
        devices = run.tp_size * int(run.target.options.get("dp_size") or 1)
        for row in run.rows:
            config = model_shape(row.model)
            workload = _workload(row.workload)
            if config is None or workload is None or row.cache == "warm" or not is_measured(row):
                continue
            flops = least_flops(config, workload.request, normalised=not row.workload.apply_softmax) / devices
            weight_bytes = least_bytes(config) * (2 if row.dtype == "float32" else 1) / devices
            yield Point(
                f"{run.target.name}, {row.workload.name}",
                flops / weight_bytes,
                flops * row.throughput_rps,
                _roof(run.environment.hardware, roofs),
                estimated=False,
            )


def _roof(hardware: str, roofs: Mapping[str, Roof]) -> Roof | None:
    """Return the roof that the user gave for some hardware, or that of a known chip, or the one given for CPUs."""
    if hardware in roofs:
        return roofs[hardware]
    if chip := chip_of(hardware):
        return _chip_roof(chip)
    return roofs.get("cpu") if is_cpu(hardware) else None


def _chip_roof(name: str) -> Roof:
    return Roof(name, CHIPS[name].flops, CHIPS[name].bytes)


def model_shape(model: str) -> ModelConfig | None:
    """Return the shape of a model by its folder, or by its name if it is a published one."""
    if (Path(model) / "config.json").is_file():
        try:
            return read_model_config(Path(model))
        except ModelError:
            return None
    return PUBLISHED.get(short_model(model).lower())


def _workload(part: WorkloadPart) -> Workload | None:
    try:
        built = prepared(part.name, labels=part.num_labels, softmax=part.apply_softmax, vocab_size=part.vocab_size)
    except WorkloadNameError:
        return None
    return None if isinstance(built.query, str) else built
