"""Prometheus' text format, as far as counts need it."""

import re

_SAMPLE = re.compile(r"([A-Za-z_:][A-Za-z0-9_:]*)(\{.*\})? (\S+)(?: \d+)?")
_IGNORED = ("_bucket", "_created")


def parse_metrics(text: str) -> dict[str, float]:
    """Return values by name; those of different labels are summed, buckets and times of creation left out."""
    values: dict[str, float] = {}
    for line in text.splitlines():
        match = _SAMPLE.fullmatch(line)
        if match is None or match[1].endswith(_IGNORED):
            continue
        try:
            values[match[1]] = values.get(match[1], 0.0) + float(match[3])
        except ValueError:
            continue
    return values
