"""What is validated: an engine in this process, or a server."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from mis_bench.targets.base import BlockingTarget, TargetUnavailable, check_forgets
from mis_bench.targets.limited import TimeLimited
from mis_bench.targets.options import with_timeout
from mis_bench.targets.registry import make_target
from mis_bench.validation.ask import Serial


@dataclass(frozen=True, slots=True)
class Subject:
    """A target and its variants. Close it after use.

    Attributes:
        multi: The target, asked for all items at once.
        serial: The same model, item by item.
        delimited: Makes the target with a delimiter token between query and item; None where that is decided
            elsewhere, by a server's command line. The gate then puts the token at the end of the query.
    """

    multi: BlockingTarget
    serial: Serial
    delimited: Callable[[int], BlockingTarget] | None = None

    def close(self) -> None:
        """Free what the targets hold."""
        self.multi.close()


def open_subject(spec: str, model: Path | None, options: Mapping[str, str], timeout_s: float) -> Subject:
    """Open a target for validation.

    Args:
        spec: As for `make_target`.
        model: Directory of the checkpoint, for targets that load one.
        options: Of the target.
        timeout_s: Seconds that a call may take.

    Raises:
        TargetUnavailable: it cannot run here; one sentence says why.
    """
    target = make_target(spec, model=model, options=with_timeout(spec, options, timeout_s))
    try:
        check_forgets(target)
    except TargetUnavailable:
        target.close()
        raise
    multi = TimeLimited(target, timeout_s)
    if spec != "engine":
        return Subject(multi, Serial(multi, splits=True))
    from mis_bench.targets.engine import EngineTarget

    assert isinstance(target, EngineTarget), "that is what the registry makes of it"
    serial = TimeLimited(target.asking(scoring_algorithm="serial"), timeout_s)

    def delimited(token: int) -> BlockingTarget:
        own = {"multi_item_scoring_delimiter": str(token), "skip_warmup": "true"}  # few of its shapes are needed
        return TimeLimited(make_target(spec, model=model, options={**options, **own}), timeout_s)

    return Subject(multi, Serial(serial, splits=False), delimited)
