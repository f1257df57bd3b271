"""Prometheus' text format, as far as counts need it."""

import re

_SAMPLE = re.compile(r"([A-Za-z_:][A-Za-z0-9_:]*)(\{.*\})? (\S+)(?: \d+)?")
_STAGE = re.compile(r"[{,]stage=\"(\w+)\"[,}]")
_IGNORED = ("_bucket", "_created")


def parse_metrics(text: str) -> dict[str, float]:
    """Return values by name, `NAME.STAGE` where there is a label `stage`.

    Those of other labels are summed, buckets and times of creation left out.
    """
    values: dict[str, float] = {}
    for line in text.splitlines():
        match = _SAMPLE.fullmatch(line)
        if match is None or match[1].endswith(_IGNORED):
            continue
        stage = _STAGE.search(match[2] or "")
        name = f"{match[1]}.{stage[1]}" if stage else match[1]
        try:
            values[name] = values.get(name, 0.0) + float(match[3])
        except ValueError:
            continue
    return values
