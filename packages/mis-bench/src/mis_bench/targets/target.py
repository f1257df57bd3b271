"""What every target is: something that scores workloads, in this process or over HTTP."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import numpy as np
from jaxtyping import Float
from pydantic import ConfigDict

from mis_bench.workload import Task, Workload

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
            `[items, labels]`, float64. Of other tasks one column: relevance, the probability that a statement is true,
            the mean log-probability of an item's tokens.
        stages_ms: Milliseconds by stage, where the target tells.
        cached_tokens: Query tokens that the target had kept, where it tells.
    """

    scores: Scores
    stages_ms: dict[str, float] = field(default_factory=dict)
    cached_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class TargetReply:
    """A reply and its times, of `time.perf_counter`.

    Attributes:
        reply: What was answered.
        sent_s: Just before the request was handed over, its body encoded long since.
        done_s: When the whole reply was there; it is decoded afterwards.
    """

    reply: Reply
    sent_s: float
    done_s: float


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


Layout = Mapping[str, str | int]
"""Fields of a request that say how it is laid out in steps; our engine takes them."""

Prepared = Any
"""A request as its target sends it, encoded before any clock starts; only that target looks into it."""


class Target(Protocol):
    """Something that scores, in this process or over HTTP; used from one event loop, by many tasks at once."""

    @property
    def about(self) -> About:
        """What it is."""

    def prepare(self, workload: Workload, layout: Layout = {}) -> Prepared:  # noqa: B006 - nobody changes it
        """Encode a request; raises `CallFailed` (`rejected`) if this target cannot be asked that."""

    async def call(self, request: Prepared) -> TargetReply:
        """Ask, and wait as long as it takes; raises `CallFailed` without a finite score for each item and label."""

    async def forget(self) -> None:
        """Make it compute the next query anew, as if it had never seen it; raises `CallFailed` if it cannot."""

    async def counts(self) -> dict[str, float]:
        """Return what it counts about itself since it started: `compilations`, `steps`, `memory_bytes` and so on."""

    async def product_rate(self) -> float | None:
        """Return the most floating-point operations a second of a layer's products; None where it cannot be measured.

        Measured anew in each call, by targets of this process that compute on a CPU; nothing else may be under way.
        """

    async def close(self) -> None:
        """Free what it holds. Closing twice is fine."""


class Opener(Protocol):
    """A target that was asked for, not yet opened."""

    @property
    def forgets(self) -> bool:
        """Whether `forget` works, so that the same request can be cold again; of a server final after `check`."""

    async def check(self) -> None:
        """Look whether it can run, without loading anything: packages, a server. Raises `TargetUnavailable`."""

    async def open(self, tasks: Collection[Task] = ("score",)) -> Target:
        """Load its weights, or connect; close the target after use.

        Args:
            tasks: What it will be asked; a server must answer a tiny request of one of them.

        Raises:
            TargetUnavailable: it cannot run, or can do none of them.
        """


def unsupported(task: Task, name: str, why: str) -> CallFailed:
    """Return what a target says of a task that it cannot do."""
    return CallFailed("rejected", f"{task} not supported by {name}: {why}")


def fitting(values: Any, workload: Workload) -> Scores:
    """Return scores as an array if there is a finite one for each item and label.

    Raises:
        CallFailed: `shape_mismatch` or `missing_scores`.
    """
    wanted = (workload.num_items, workload.num_labels)
    try:
        scores = np.array(values, np.float64)
    except (TypeError, ValueError):
        raise CallFailed("shape_mismatch", f"{workload.name}: the scores are not a table of numbers.") from None
    if scores.shape != wanted:
        raise CallFailed("shape_mismatch", f"{workload.name}: scores of shape {scores.shape}, expected {wanted}")
    if not np.isfinite(scores).all():
        raise CallFailed("missing_scores", f"{workload.name}: some scores are null or not finite")
    return scores


def scores_of(logprobs: Scores, workload: Workload) -> Scores:
    """Turn log-probabilities of the labels in the whole vocabulary into the scores that a workload asks for."""
    from scipy.special import softmax  # late: `--help` does not need it

    return softmax(logprobs, axis=1) if workload.apply_softmax else np.exp(logprobs)


def is_out_of_memory(message: str) -> bool:
    """Whether an error says so, in the words of XLA, CUDA or a CPU's allocator."""
    words = ("resource_exhausted", "out of memory", "can't allocate memory")
    return any(each in message.lower() for each in words)
