"""Targets that `validate` can ask, without a model: right in everything, unless a fault changes their scores."""

import asyncio
import zlib
from collections.abc import Callable

import numpy as np

from mis_bench.targets.target import About, Layout, Reply, TargetReply
from mis_bench.workload import Workload

Fault = Callable[["Fake", Workload, np.ndarray], np.ndarray]
SERIAL_S = 0.1


class Fake:
    """A target, and what opens it: scores depend on query, item and seed alone, unless a fault changes them.

    Requests with the field for serial scoring have the fault only if `is_serial_faulty`, and take `SERIAL_S`.
    """

    forgets = True

    def __init__(
        self,
        fault: Fault = lambda _fake, _workload, scores: scores,
        *,
        is_serial_faulty: bool = False,
        seed: int = 0,
        delimiter: int | None = None,
        seconds: float = 0.01,
        dtype: str = "bfloat16",
        devices: str = "1 x cpu",
        quantization: str = "none",
    ) -> None:
        self.fault, self.is_serial_faulty, self.seed, self.delimiter = fault, is_serial_faulty, seed, delimiter
        self.seconds, self.cached, self.under_way, self.is_closed = seconds, set[bytes](), 0, False
        options = {"devices": devices, "quantization": quantization}
        self.about = About("fake", "fake", "a model", dtype=dtype, options=options)

    async def check(self) -> None: ...

    async def open(self) -> "Fake":
        return self

    def prepare(self, workload: Workload, layout: Layout = {}) -> tuple[Workload, bool]:  # noqa: B006
        return workload, layout.get("scoring_algorithm") == "serial"

    async def call(self, request: tuple[Workload, bool]) -> TargetReply:
        workload, is_serial = request
        sent = asyncio.get_running_loop().time()
        self.under_way += 1
        try:
            await asyncio.sleep(SERIAL_S if is_serial else self.seconds)
            scores = self.scores(workload)
            if self.is_serial_faulty or not is_serial:
                scores = self.fault(self, workload, scores)
        finally:
            self.under_way -= 1
        self.cached.add(np.asarray(workload.query).tobytes())
        return TargetReply(Reply(scores), sent, asyncio.get_running_loop().time())

    def scores(self, workload: Workload) -> np.ndarray:
        query = workload.query if self.delimiter is None else np.append(workload.query, self.delimiter)
        odds = np.exp([self.logits(np.append(query, item), workload) for item in workload.items])
        return odds / odds.sum(1, keepdims=True) if workload.apply_softmax else odds / 1e4

    def logits(self, tokens: np.ndarray, workload: Workload) -> np.ndarray:
        random = np.random.default_rng([self.seed, zlib.crc32(tokens.astype(np.int32).tobytes())])
        return 2 * random.standard_normal(len(workload.label_token_ids))

    async def forget(self) -> None:
        self.cached.clear()

    async def counts(self) -> dict[str, float]:
        return {}

    async def close(self) -> None:
        self.is_closed = True


def drifts(share: float) -> Fault:
    """Move each score by so many percent, up and down in turn; label softmaxes stay softmaxes."""

    def moved(_: Fake, workload: Workload, scores: np.ndarray) -> np.ndarray:
        scores = scores * (1 + 0.01 * share * (-1.0) ** np.arange(scores.size).reshape(scores.shape))
        return scores / scores.sum(1, keepdims=True) if workload.apply_softmax else scores

    return moved


rounds = drifts(1.0)
