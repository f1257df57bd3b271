"""The contents of a report, before they become HTML or Markdown."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from mis_bench.artifacts.run import RunResult
from mis_bench.report.headlines import headlines
from mis_bench.report.lines import short_model
from mis_bench.report.rooflines import Roof
from mis_bench.report.section import Headline, Section
from mis_bench.report.sections.about import about, hardware
from mis_bench.report.sections.comparison import comparisons
from mis_bench.report.sections.gates import performance, stress, validation
from mis_bench.report.sections.latency import latency
from mis_bench.report.sections.matrix import matrix
from mis_bench.report.sections.memory import memory
from mis_bench.report.sections.roofline import roofline
from mis_bench.report.sections.speedup import speedup
from mis_bench.report.sections.stages import stages
from mis_bench.report.sections.throughput import throughput
from mis_bench.report.sections.traces import traces
from mis_bench.report.sources import Sources, distinct


@dataclass(frozen=True, slots=True)
class Contents:
    """A report.

    Attributes:
        title: What was measured.
        subtitle: Models and hardware.
        headlines: A few figures.
        sections: In the order of the page.
    """

    title: str
    subtitle: str
    headlines: Sequence[Headline]
    sections: Sequence[Section]


def contents(sources: Sources, *, title: str | None = None, roofs: Mapping[str, Roof] | None = None) -> Contents:
    """Decide what the page says.

    Args:
        sources: Artifacts and estimates.
        title: Heading of the page, instead of one made of the workloads.
        roofs: Peaks of hardware that runs name, or of `cpu`, for the roofline.
    """
    return Contents(
        title=title or _title(sources),
        subtitle=" · ".join([*_models(sources), *hardware(sources), *_estimated(sources)]),
        headlines=headlines(sources),
        sections=[section for section in _sections(sources, roofs or {}) if section is not None],
    )


def _sections(sources: Sources, roofs: Mapping[str, Roof]) -> Iterator[Section | None]:
    yield from comparisons(sources)
    yield throughput(sources)
    yield latency(sources)
    yield traces(sources)
    yield matrix(sources)
    yield speedup(sources)
    yield stages(sources)
    yield roofline(sources, roofs)
    yield memory(sources)
    yield validation(sources)
    yield stress(sources)
    yield from performance(sources)
    yield from about(sources)


def _title(sources: Sources) -> str:
    workloads = distinct(
        [
            *(each.content.workload.name for each in (*sources.comparisons, *sources.matrices)),
            *(each.content.workload for each in sources.estimates),
            *(name for each in sources.runs for name in _measured(each.content)),
        ]
    )
    if not workloads:
        return "Multi-item scoring"
    return f"Multi-item scoring: {' and '.join(workloads) if len(workloads) < 3 else f'{len(workloads)} workloads'}"


def _measured(run: RunResult) -> Sequence[str]:
    """Return the profile of a run, or its workloads if it has none."""
    if run.profile != "workloads":
        return [f"the {run.profile} profile"]
    return distinct(row.workload.name for row in run.rows)


def _models(sources: Sources) -> list[str]:
    """Return the models that something was measured on, without folders."""
    models = [
        *(row.model for each in sources.runs for row in each.content.rows),
        *(target.model for each in sources.comparisons for target in each.content.targets if target.model),
        *(
            each.content.target.model
            for each in (*sources.traces, *sources.matrices, *sources.stresses, *sources.profiles)
        ),
        *(model.model for each in sources.validations for model in each.content.models),
    ]
    return [", ".join(distinct(map(short_model, models)))] if models else []


def _estimated(sources: Sources) -> list[str]:
    topologies = distinct(each.content.topology for each in sources.estimates)
    return [f"estimates for {', '.join(topologies)}"] if topologies else []
