"""What every target is: something that scores workloads, in this process or over HTTP."""

from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import numpy as np
from jaxtyping import Float
from pydantic import ConfigDict

from mis_bench.workload import Workload

Scores = Float[np.ndarray, "items labels"]


class TargetUnavailable(Exception):
    """A target cannot run here; one sentence says why and what would help."""


class CallFailed(Exception):
    """A target did not answer a call.

    Attributes:
        reason: `timeout`, `connection_error`, `http_error`, `out_of_memory`, `bad_json`, `missing_scores`,
            `shape_mismatch`, `rejected` (the request cannot be served by this target at all) or `error`.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer.

    Attributes:
        scores: Softmax over the labels if the workload asks for it, else full-vocabulary probabilities,
            `[items, labels]`, float64.
        stages_ms: Milliseconds by stage, where the target tells.
        cached_tokens: Query tokens that the target had kept, where it tells.
    """

    scores: Scores
    stages_ms: dict[str, float] = field(default_factory=dict)
    cached_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class About:
    """What a target is, for the artifact of a run.

    Attributes:
        name: Its spelling on the command line.
        backend: `mis-engine`, `mis-server`, `sglang`, `vllm`, `openai`, `transformers`, `llama.cpp`.
        model: Name or directory of the model.
        model_sha256: Checksum of the checkpoint, where it can be read here (`environment.checkpoint_sha256`).
        dtype: Type of weights and activations, if known.
        options: Server arguments or engine options, if known.
        versions: Versions of what computes.
    """

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")  # artifacts hold it

    name: str
    backend: str
    model: str
    model_sha256: str | None = None
    dtype: str | None = None
    options: dict[str, str | int | float | bool | None] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def accelerators(self) -> str | None:
        """Kind and number of accelerators, where an engine in this process has some."""
        devices = str(self.options.get("devices", ""))
        return devices if devices and not devices.endswith(" cpu") else None


def fitting(scores: np.ndarray, workload: Workload) -> Scores:
    """Return the scores if there is a finite one for each item and label.

    Raises:
        CallFailed: `shape_mismatch` or `missing_scores`.
    """
    wanted = (workload.num_items, len(workload.label_token_ids))
    if scores.shape != wanted:
        raise CallFailed("shape_mismatch", f"{workload.name}: scores of shape {scores.shape}, expected {wanted}")
    if not np.isfinite(scores).all():
        raise CallFailed("missing_scores", f"{workload.name}: some scores are null or not finite")
    return scores


class Target(Protocol):
    """Something that scores. Safe to call from several threads at once."""

    @property
    def about(self) -> About:
        """What it is."""
        ...

    def score(self, workload: Workload) -> Reply:
        """Score a workload.

        Raises:
            CallFailed: it did not answer; nothing else is harmed.
        """
        ...

    def forget(self) -> None:
        """Make it compute the next query anew, as if it had never seen it.

        Raises:
            CallFailed: `rejected` by some servers, which know no way (`HttpTarget.forget`): ask them a query that is
                new, `Workload.another`. Another reason if a server refused to.
        """
        ...

    def counts(self) -> dict[str, float]:
        """Return what it counts about itself since it started: `compilations`, `steps`, `memory_bytes` and so on."""
        ...

    def close(self) -> None:
        """Free what it holds. Closing twice is fine."""
        ...


def check_forgets(target: Target) -> None:
    """Refuse a target that knows no way to forget a query; any other failure is left to the calls that will meet it.

    Raises:
        TargetUnavailable: it knows none.
    """
    try:
        target.forget()
    except CallFailed as error:
        if error.reason == "rejected":
            raise TargetUnavailable(str(error)) from None
