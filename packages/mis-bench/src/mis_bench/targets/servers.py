"""Dialects of servers that score: ours, SGLang and vLLM."""

import re
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from mis_bench.targets.base import CallFailed, Reply
from mis_bench.targets.connection import Connection
from mis_bench.targets.dialect import Dialect, Salt, checked_scores, plain
from mis_bench.workload import Workload

_LAYOUT = ("scoring_algorithm", "mask_impl", "multi_item_scoring_chunk_size")

_VLLM_WITH_SALT = (0, 33)

_TOLD_WITHIN_S = 5.0  # what a server says of itself


class Mis(Dialect):
    """`mis-server`.

    Options: `admin_key`, with which `forget` empties the cache instead of changing the salt; and `scoring_algorithm`,
    `mask_impl` and `multi_item_scoring_chunk_size`, which the server takes with `--enable-request-layout` only.
    """

    BACKEND: ClassVar[str] = "mis-server"
    OPTIONS: ClassVar[tuple[str, ...]] = ("admin_key", *_LAYOUT)

    def __init__(self, connection: Connection, model: str, options: dict[str, str], directory: Path | None) -> None:
        super().__init__(connection, model, options, directory)
        self._salt = Salt()
        self._admin_key = options.get("admin_key")
        layout = {name: options[name] for name in _LAYOUT if name in options}
        chunk = layout.pop("multi_item_scoring_chunk_size", None)
        self._fields: dict[str, Any] = {"model": model, **layout}
        if chunk is not None:
            self._fields["multi_item_scoring_chunk_size"] = int(chunk) if chunk.isdigit() else chunk

    def score(self, workload: Workload, *, timeout_s: float | None = None) -> Reply:
        """`POST /v1/score`."""
        body = workload.request | self._fields | self._salt.field
        return _scored(self.connection.post("/v1/score", body, timeout_s=timeout_s), workload)

    def forget(self) -> None:
        """Change the salt, or with an admin key empty the cache."""
        if self._admin_key is None:
            self._salt.change()
        else:
            self.connection.post("/flush_cache", {}, api_key=self._admin_key)

    def details(self) -> dict[str, Any]:
        """`GET /server_info`."""
        info = self.connection.get("/server_info", timeout_s=_TOLD_WITHIN_S)
        options = plain(info.get("settings", {})) | plain(info.get("engine", {}))
        return {"dtype": options.get("dtype"), "version": info.get("version"), "options": options}

    def counts(self) -> dict[str, float]:
        """The engine's statistics."""
        statistics = self.connection.get("/server_info", timeout_s=_TOLD_WITHIN_S).get("statistics", {})
        return {name: float(value) for name, value in statistics.items() if isinstance(value, int | float)}


class SGLang(Dialect):
    """SGLang's `/v1/score`. Without `--enable-mis` it computes item by item behind its prefix cache."""

    BACKEND: ClassVar[str] = "sglang"

    def score(self, workload: Workload, *, timeout_s: float | None = None) -> Reply:
        """`POST /v1/score`."""
        body = workload.request | {"model": self.model}
        return _scored(self.connection.post("/v1/score", body, timeout_s=timeout_s), workload)

    def forget(self) -> None:
        """Empty the cache; SGLang refuses while requests are under way."""
        self.connection.text("POST", "/flush_cache")

    def details(self) -> dict[str, Any]:
        """`GET /server_info`, or its older name."""
        for path in ("/server_info", "/get_server_info"):
            try:
                info = self.connection.get(path, timeout_s=_TOLD_WITHIN_S)
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

    def __init__(self, connection: Connection, model: str, options: dict[str, str], directory: Path | None) -> None:
        super().__init__(connection, model, options, directory)
        self._salt = Salt()
        self._version: str | None = None

    def score(self, workload: Workload, *, timeout_s: float | None = None) -> Reply:
        """`POST /generative_scoring`, once or for each label."""
        labels = workload.label_token_ids.tolist()
        if workload.apply_softmax and len(labels) == 2:
            first = self._first_label(workload, labels, timeout_s)
            return Reply(np.stack([first, 1 - first], axis=1))
        columns = [
            self._first_label(workload, [label, *labels[:place], *labels[place + 1 :]], timeout_s)
            for place, label in enumerate(labels)
        ]
        return Reply(np.stack(columns, axis=1))

    def forget(self) -> None:
        """Change the salt; versions before 0.33 ignore it and keep the query, so they are refused."""
        if _numbers(self._version) < _VLLM_WITH_SALT:
            raise CallFailed(
                "rejected",
                f"vLLM {self._version or 'of an unknown version'} knows no way to forget a query; 0.33 is the first "
                "whose scoring has a cache salt.",
            )
        self._salt.change()

    def details(self) -> dict[str, Any]:
        """`GET /version`."""
        self._version = self.connection.get("/version", timeout_s=_TOLD_WITHIN_S).get("version")
        return {"version": self._version}

    def _first_label(self, workload: Workload, labels: list[int], timeout_s: float | None) -> np.ndarray:
        body = workload.request | self._salt.field | {
            "model": self.model,
            "label_token_ids": labels,
            "apply_softmax": workload.apply_softmax,
            "add_special_tokens": False,
        }  # fmt: skip
        reply = self.connection.post("/generative_scoring", body, timeout_s=timeout_s)
        try:
            scores = {int(each["index"]): each["score"] for each in reply["data"]}
        except (KeyError, TypeError, ValueError):
            raise CallFailed("missing_scores", "The reply has no `data` with an index and a score each.") from None
        if sorted(scores) != list(range(workload.num_items)):
            raise CallFailed("shape_mismatch", f"The reply has {len(scores)} scores for {workload.num_items} items.")
        rows = [[scores[index]] for index in range(workload.num_items)]
        return checked_scores(rows, workload.with_labels(1))[:, 0]


def _numbers(version: object) -> tuple[int, ...]:
    """Return the first two numbers of a version; none of what is no version."""
    found = re.match(r"(\d+)\.(\d+)", str(version))
    return tuple(map(int, found.groups())) if found else ()


def _scored(reply: dict[str, Any], workload: Workload) -> Reply:
    if reply.get("scores") is None:
        raise CallFailed("missing_scores", "The reply has no `scores`.")
    usage = reply.get("usage") or {}
    details = (usage.get("prompt_tokens_details") if isinstance(usage, dict) else None) or {}
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return Reply(checked_scores(reply["scores"], workload), cached_tokens=cached if isinstance(cached, int) else None)
