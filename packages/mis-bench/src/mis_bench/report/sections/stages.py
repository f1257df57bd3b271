"""Where the time of a request goes, stage by stage."""

from collections.abc import Sequence

import plotly.graph_objects as go

from mis_bench.report.section import Plot, Section, Table, number
from mis_bench.report.sources import Sources, distinct
from mis_bench.report.style import COLOURS, PATTERNS, bar_height, figure, names_axis

SMALL = 0.02
"""Stages below this share everywhere are drawn together, as `other`."""

_LEFT_OVER = "other"


def stages(sources: Sources) -> Section | None:
    """Return the section of profiles and estimates; None if none tells stages."""
    found: dict[str, dict[str, float]] = {}
    for source in sources.profiles:
        profile = source.content
        requests = max(1, len(profile.requests))
        if profile.stages:
            name = f"{profile.target.name}, {profile.scenario}, profiled"
            found[_free(name, found, source.path.name)] = {each.stage: each.ms / requests for each in profile.stages}
    for source in sources.estimates:
        estimate = source.content
        name = f"{estimate.model} on {estimate.topology}, estimated"
        found[_free(name, found, source.path.name)] = {each.name: each.milliseconds for each in estimate.stages}
    if not found:
        return None
    return Section("stages", "Stages", [Plot(_figure(found), _reading(found))], [_table(found)])


def _free(name: str, found: dict[str, dict[str, float]], file: str) -> str:
    return name if name not in found else f"{name}, {file}"


def _figure(found: dict[str, dict[str, float]]) -> go.Figure:
    shares = {name: {stage: ms / sum(those.values()) for stage, ms in those.items()} for name, those in found.items()}
    order = _order(shares)
    traces = []
    for index, stage in enumerate(order):
        drawn = [_share(those, stage, order) for those in shares.values()]
        traces.append(
            go.Bar(
                y=list(found),
                x=[100 * share for share in drawn],
                customdata=[share * sum(those.values()) for share, those in zip(drawn, found.values(), strict=True)],
                name=stage,
                orientation="h",
                marker={
                    "color": COLOURS[index % len(COLOURS)],
                    "pattern": {"shape": PATTERNS[index // len(COLOURS) % len(PATTERNS)], "size": 6, "solidity": 0.35},
                },
                hovertemplate="%{y}: %{x:.1f} %, %{customdata:.3~g} ms<extra>%{fullData.name}</extra>",
            )
        )
    return figure(
        traces,
        x={"title": "Share of device time in %", "range": [0, 100]},
        y=names_axis(list(found)),
        height=bar_height(len(found)) + 40,
        barmode="stack",
        bargap=0.35,
    )


def _order(shares: dict[str, dict[str, float]]) -> list[str]:
    """Return the stages, largest first, small ones left out; the last is `other` if there are such."""
    names = distinct(stage for those in shares.values() for stage in those)
    largest = {name: max(those.get(name, 0.0) for those in shares.values()) for name in names}
    kept = sorted((name for name in names if largest[name] >= SMALL), key=lambda name: -largest[name])
    return kept if len(kept) == len(names) else [*kept, _LEFT_OVER]


def _share(those: dict[str, float], stage: str, order: Sequence[str]) -> float:
    if stage == _LEFT_OVER and stage not in those:
        return sum(share for name, share in those.items() if name not in order)
    return those.get(stage, 0.0)


def _reading(found: dict[str, dict[str, float]]) -> str:
    name, those = next(iter(found.items()))
    first, second = [*sorted(those, key=lambda stage: -those[stage]), "", ""][:2]
    total = sum(those.values())
    also = f", then {second} ({those[second] / total:.0%})" if second else ""
    return f"The longest part is what to make faster first. In {name}: {first} ({those[first] / total:.0%}){also}."


def _table(found: dict[str, dict[str, float]]) -> Table:
    rows = [
        [name, stage, number(ms), f"{ms / sum(those.values()):.1%}"]
        for name, those in found.items()
        for stage, ms in sorted(those.items(), key=lambda each: -each[1])
    ]
    return Table("Device time of a request by stage", ["what", "stage", "ms", "share"], rows)
