"""A stored summary beside the one that the records make."""

import math
from collections.abc import Collection, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from mis_bench.artifact import ArtifactError, Part, read_artifact
from mis_bench.results.folder import SUMMARY
from mis_bench.results.records import Results
from mis_bench.results.summary import Summary, summarize

MOST = 10
"""Faults of one file that are told."""

_SINCE_V2 = {
    "limits", "gates", "slo_p99_ms", "deltas",
    "goodput_rps",  # a sum over all rounds before
    "findings",  # of comparisons they were worded otherwise
    "objections", "wins", "passed",  # a target whose opponents failed won before
}  # fmt: skip


def summary_faults(folder: Path, results: Results) -> Iterator[str]:
    """Yield where stored figures are not those that the records make, rounding aside; raises `ArtifactError`."""
    stored = read_artifact(folder / SUMMARY)
    if not isinstance(stored, Summary):
        raise ArtifactError(f"{folder / SUMMARY} is not a {Summary.SCHEMA}")
    younger = _SINCE_V2 if stored.is_old else ()
    yield from islice(differences(SUMMARY, stored, summarize(results), younger), MOST)


def differences(
    file: str, stored: Part, anew: Part, without: Collection[str] = (), *, by: str = "the records make"
) -> Iterator[str]:
    """Yield a sentence for every figure of a document that is not the one computed anew, rounding aside.

    Args:
        file: Of the document.
        stored: What it says.
        anew: What it should say.
        without: Fields that are not compared, wherever they stand.
        by: What made it anew.
    """
    left_out = {*without, "generated_by", "schema_version"}
    mine, theirs = (dict(_figures(each.model_dump())) for each in (anew, stored))
    for where in mine | theirs:
        if not left_out.isdisjoint(where.split(".")):
            continue
        expected, found = mine.get(where), theirs.get(where)
        if isinstance(expected, float) and isinstance(found, float) and math.isclose(expected, found, rel_tol=1e-9):
            continue
        if expected != found:
            yield f"{file}: {where} is {str(found)[:80]}, but {by} it {str(expected)[:80]}"


def _figures(value: Any, where: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every figure of a document, and where it is."""
    if isinstance(value, dict | list):
        for name, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _figures(each, f"{where}.{name}".lstrip("."))
    else:
        yield where, value
