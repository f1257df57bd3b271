"""Servers over HTTP as targets."""

import math
from collections.abc import Mapping
from pathlib import Path

from mis_bench.environment import checkpoint_sha256
from mis_bench.targets.base import About, CallFailed, Reply, TargetUnavailable
from mis_bench.targets.connection import TIMEOUT_S, Connection
from mis_bench.targets.dialect import Dialect
from mis_bench.targets.metrics import parse_metrics
from mis_bench.targets.options import check_names, is_secret
from mis_bench.workload import Workload

HEALTH_TIMEOUT_S = 5.0
"""Within this time a server must say that it is well before anything is measured, and which model it serves."""

PROBE_TIMEOUT_S = 30.0
"""Within this time it must answer a tiny request."""


class HttpTarget:
    """A server. Make it with `open_server`."""

    def __init__(self, about: About, connection: Connection, dialect: Dialect) -> None:
        self._about, self._connection, self._dialect = about, connection, dialect

    @property
    def about(self) -> About:
        """What it is, by its own account."""
        return self._about

    def score(self, workload: Workload) -> Reply:
        """Score over HTTP; raises `CallFailed`."""
        return self._dialect.score(workload)

    def forget(self) -> None:
        """Make the server compute the next query anew, as its dialect can.

        `mis` and `vllm` do it with another cache salt, `sglang` (and `mis` with an admin key) by emptying the cache.

        Raises:
            CallFailed: `rejected` by `openai`, and by `vllm` before 0.33, which know no way: ask a query that is new
                (`Workload.another`). Another reason if the server refused to.
        """
        self._dialect.forget()

    def counts(self) -> dict[str, float]:
        """Return the server's metrics (`parse_metrics`), and for `mis` its engine's statistics.

        `mis_stage_seconds_sum.queue`, for instance, is the time that requests have waited. `memory_bytes` is the
        resident memory of the process that answers HTTP. What a server does not tell is absent.
        """
        try:
            counts = parse_metrics(self._connection.text("GET", "/metrics", timeout_s=HEALTH_TIMEOUT_S))
        except CallFailed:
            counts = {}
        if "process_resident_memory_bytes" in counts:
            counts["memory_bytes"] = counts["process_resident_memory_bytes"]
        try:
            return counts | self._dialect.counts()
        except CallFailed:
            return counts

    def close(self) -> None:
        """Close the connections."""
        self._connection.close()


def open_server(
    spec: str, url: str, dialect: type[Dialect], options: Mapping[str, str], directory: Path | None
) -> HttpTarget:
    """Connect and check: health within 5 s, the right model, and one tiny request within 30 s.

    Args:
        spec: Name of the target.
        url: Address of the server.
        dialect: How it is asked.
        options: `api_key`, `timeout_s` (300), `model` (the name that must be served), and the dialect's own.
        directory: The checkpoint that is served, if it can be read here.

    Raises:
        TargetUnavailable: the server fails a check, or an option is wrong.
    """
    check_names(spec, options, ("api_key", "timeout_s", "model", *dialect.OPTIONS))
    given = dict(options)
    wanted, api_key = given.pop("model", None), given.pop("api_key", None)
    connection = Connection(url, api_key=api_key, timeout_s=_seconds(given.pop("timeout_s", str(TIMEOUT_S))))
    try:
        connection.text("GET", "/health", timeout_s=HEALTH_TIMEOUT_S)
        model = _model(connection, wanted)
        asked = dialect(connection, model, given, directory)
        asked.probe(PROBE_TIMEOUT_S)
        details = asked.details()
    except CallFailed as error:
        connection.close()
        raise TargetUnavailable(f"{spec} failed its check ({error.reason}): {error}") from None
    except TargetUnavailable:
        connection.close()
        raise
    about = About(
        name=spec,
        backend=dialect.BACKEND,
        model=model,
        model_sha256=_checksum(directory or Path(model)),
        dtype=details.get("dtype"),
        options=details.get("options", {}) | {key: value for key, value in given.items() if not is_secret(key)},
        versions={dialect.BACKEND: details["version"]} if details.get("version") else {},
    )
    return HttpTarget(about, connection, asked)


def _model(connection: Connection, wanted: str | None) -> str:
    """Return the name of the served model.

    Raises:
        TargetUnavailable: it is not the wanted one.
        CallFailed: the server does not tell.
    """
    models = connection.get("/v1/models", timeout_s=HEALTH_TIMEOUT_S).get("data")
    names = [str(each["id"]) for each in models if "id" in each] if isinstance(models, list) else []
    if wanted is not None and wanted not in names:
        raise TargetUnavailable(f"{connection.url} serves {', '.join(names) or 'no model'}, not {wanted}.")
    if not names:
        raise TargetUnavailable(f"{connection.url} serves no model.")
    return wanted or names[0]


def _checksum(directory: Path) -> str | None:
    try:
        return checkpoint_sha256(directory)
    except (OSError, ValueError):
        return None


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise TargetUnavailable(f"The option timeout_s must be a number of seconds above 0, not {text[:80]!r}.")
    return seconds
