"""Dialects of servers that score: ours, SGLang and vLLM."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from mis_bench.targets.base import CallFailed, Reply
from mis_bench.targets.client import Client
from mis_bench.targets.dialect import TOLD_WITHIN_S, Dialect, Json, checked_scores, in_order, plain
from mis_bench.targets.options import Declared
from mis_bench.workload import Workload

_LAYOUT = ("scoring_algorithm", "mask_impl", "multi_item_scoring_chunk_size")
_VLLM_WITH_SALT = (0, 33)


class Mis(Dialect):
    """`mis-server`.

    Options: `admin_key`, with which the cache is flushed instead of changing the salt; and `scoring_algorithm`,
    `mask_impl` and `multi_item_scoring_chunk_size` of every request, which the server takes with
    `--enable-request-layout` only.
    """

    BACKEND: ClassVar[str] = "mis-server"
    PATH: ClassVar[str] = "/v1/score"
    OPTIONS: ClassVar[Declared] = dict.fromkeys(("admin_key", *_LAYOUT))
    LAYOUTS: ClassVar[bool] = True

    def __init__(self, options: Mapping[str, Any], directory: Path | None) -> None:
        super().__init__(options, directory)
        self.admin_key = options["admin_key"]
        self.forgets = "salt" if self.admin_key is None else "flush"
        given = {name: options[name] for name in _LAYOUT if options[name] is not None}
        self._layout = {name: int(value) if value.isdigit() else value for name, value in given.items()}

    def bodies(self, workload: Workload) -> list[Json]:
        """One request."""
        return [workload.request | self._layout]

    def reply(self, answers: Sequence[Json], workload: Workload) -> Reply:
        """Scores and the cached tokens of the usage."""
        return _scored(answers[0], workload)

    async def details(self, client: Client) -> Json:
        """`GET /server_info`."""
        info = await client.get("/server_info", timeout_s=TOLD_WITHIN_S)
        options = plain(info.get("settings", {})) | plain(info.get("engine", {}))
        return {"dtype": options.get("dtype"), "version": info.get("version"), "options": options}

    async def counts(self, client: Client) -> dict[str, float]:
        """The engine's statistics."""
        statistics = (await client.get("/server_info", timeout_s=TOLD_WITHIN_S)).get("statistics", {})
        return {name: float(value) for name, value in statistics.items() if isinstance(value, int | float)}


class SGLang(Dialect):
    """SGLang's `/v1/score`. Without `--enable-mis` it computes item by item behind its prefix cache.

    It refuses to flush its cache while requests are under way.
    """

    BACKEND: ClassVar[str] = "sglang"
    PATH: ClassVar[str] = "/v1/score"

    def __init__(self, options: Mapping[str, Any], directory: Path | None) -> None:
        super().__init__(options, directory)
        self.forgets = "flush"

    def bodies(self, workload: Workload) -> list[Json]:
        """One request."""
        return [workload.request]

    def reply(self, answers: Sequence[Json], workload: Workload) -> Reply:
        """Scores, and the cached tokens where the usage has them."""
        return _scored(answers[0], workload)

    async def details(self, client: Client) -> Json:
        """`GET /server_info`, or its older name."""
        for path in ("/server_info", "/get_server_info"):
            try:
                info = await client.get(path, timeout_s=TOLD_WITHIN_S)
            except CallFailed:
                continue
            return {"dtype": info.get("dtype"), "version": info.get("version"), "options": plain(info)}
        return {}


class VLLM(Dialect):
    """vLLM's `/generative_scoring`.

    It answers with the first label's score only. Two labels with a softmax need one call, since they sum to 1;
    otherwise each label takes a call of its own, one after another, with that label in front.
    """

    BACKEND: ClassVar[str] = "vllm"
    PATH: ClassVar[str] = "/generative_scoring"

    def __init__(self, options: Mapping[str, Any], directory: Path | None) -> None:
        super().__init__(options, directory)
        self._version: str | None = None

    def bodies(self, workload: Workload) -> list[Json]:
        """One request, or one for each label."""
        labels = workload.label_token_ids.tolist()
        orders = [[label, *labels[:place], *labels[place + 1 :]] for place, label in enumerate(labels)]
        fields = {"apply_softmax": workload.apply_softmax, "add_special_tokens": False}
        return [
            workload.request | fields | {"label_token_ids": order}
            for order in (orders[:1] if _needs_one_call(workload) else orders)
        ]

    def reply(self, answers: Sequence[Json], workload: Workload) -> Reply:
        """The first label's score of each answer, its items in any order."""
        columns = [self._column(answer, workload) for answer in answers]
        if _needs_one_call(workload):
            columns.append(1 - columns[0])
        return Reply(np.stack(columns, axis=1))

    @property
    def why_not_forget(self) -> str:
        """Versions before 0.33 ignore the salt and keep the query."""
        return (
            f"vLLM {self._version or 'of an unknown version'} knows no way to forget a query; 0.33 is the first whose "
            "scoring has a cache salt."
        )

    async def details(self, client: Client) -> Json:
        """`GET /version`."""
        self._version = (await client.get("/version", timeout_s=TOLD_WITHIN_S)).get("version")
        found = re.match(r"(\d+)\.(\d+)", str(self._version))
        self.forgets = "salt" if found and tuple(map(int, found.groups())) >= _VLLM_WITH_SALT else None
        return {"version": self._version}

    def _column(self, answer: Json, workload: Workload) -> np.ndarray:
        try:
            scores = {int(each["index"]): each["score"] for each in answer["data"]}
        except (KeyError, TypeError, ValueError):
            raise CallFailed("missing_scores", "The reply has no `data` with an index and a score each.") from None
        rows = [[score] for score in in_order(scores, workload.num_items, "scores")]
        return checked_scores(rows, workload.with_labels(1))[:, 0]


def _needs_one_call(workload: Workload) -> bool:
    return workload.apply_softmax and len(workload.label_token_ids) == 2


def _scored(answer: Json, workload: Workload) -> Reply:
    if answer.get("scores") is None:
        raise CallFailed("missing_scores", "The reply has no `scores`.")
    usage = answer.get("usage") or {}
    details = (usage.get("prompt_tokens_details") if isinstance(usage, dict) else None) or {}
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return Reply(checked_scores(answer["scores"], workload), cached_tokens=cached if isinstance(cached, int) else None)
