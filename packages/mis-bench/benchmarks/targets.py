"""What `cpu_comparison` compares: every target scores the same token ids and returns label softmaxes."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from jaxtyping import Float

from mis_core import Engine

Scores = Float[np.ndarray, "items labels"]
FAST_ITEMS = (
    "mis prefill_extend", "mis packed", "mis auto", "mis auto, warm", "torch shared cache", "llama.cpp",
)  # fmt: skip
"""Targets that compute the query once, and so can be asked for all items."""


class Unavailable(RuntimeError):
    """A target cannot run here; says why."""


@dataclass(frozen=True)
class Workload:
    """One request of token ids."""

    query: list[int]
    items: list[list[int]]
    labels: tuple[int, ...]

    def first(self, count: int) -> "Workload":
        """Return the workload with its first items only."""
        return Workload(self.query, self.items[:count], self.labels)


class Target(Protocol):
    """Something that scores."""

    def score(self, workload: Workload) -> Scores:
        """Return the softmax over the labels after query + item, for each item."""
        ...

    def forget(self) -> None:
        """Drop what was kept of earlier requests, unless keeping it is what is measured."""
        ...


def softmax(logits: Float[np.ndarray, "items labels"]) -> Scores:
    """Return the softmax of each row."""
    weights = np.exp(logits - logits.max(1, keepdims=True))
    return weights / weights.sum(1, keepdims=True)


class Mis:
    """MIS in process; all layouts share one engine."""

    _engines: dict[Path, Engine] = {}  # noqa: RUF012 - one engine a checkpoint, for as long as the program runs

    def __init__(self, path: Path, algorithm: str, keep: bool = False) -> None:
        if path not in self._engines:
            self._engines[path] = Engine.from_pretrained(path, max_total_tokens=8192)
        self._engine, self._algorithm, self._keep = self._engines[path], algorithm, keep

    def score(self, workload: Workload) -> Scores:
        """Score with this target's layout."""
        request: dict[str, Any] = {"scoring_algorithm": self._algorithm, "apply_softmax": True}
        return self._engine.score(workload.query, workload.items, list(workload.labels), **request).scores

    def forget(self) -> None:
        """Flush the prefix cache."""
        if not self._keep:
            self._engine.flush_cache()


class Torch:
    """Hugging Face transformers on PyTorch, bfloat16: item by item, or batches behind one cached query."""

    _models: dict[Path, Any] = {}  # noqa: RUF012 - likewise

    def __init__(self, path: Path, batch: int | None) -> None:
        try:
            import torch
            from transformers import AutoModelForCausalLM
        except ImportError as error:
            raise Unavailable(f"{error.name} is not installed") from None
        self._torch, self._batch = torch, batch
        if path not in self._models:
            self._models[path] = AutoModelForCausalLM.from_pretrained(
                path, dtype=torch.bfloat16, attn_implementation="sdpa"
            ).eval()
        self._model = self._models[path]

    def score(self, workload: Workload) -> Scores:
        """Score; with a batch size, compute the query once and repeat its cache for each batch."""
        with self._torch.inference_mode():
            logits = self._serial(workload) if self._batch is None else self._shared(workload, self._batch)
        return softmax(logits)

    def forget(self) -> None:
        """Nothing is kept."""

    def _serial(self, workload: Workload) -> np.ndarray:
        rows = []
        for item in workload.items:
            tokens = self._torch.tensor([[*workload.query, *item]])
            rows.append(self._labels(self._model(tokens, use_cache=False, logits_to_keep=1), workload))
        return np.concatenate(rows)

    def _shared(self, workload: Workload, batch: int) -> np.ndarray:
        from transformers import DynamicCache

        cache = DynamicCache(config=self._model.config)
        self._model(self._torch.tensor([workload.query]), past_key_values=cache, logits_to_keep=1)
        cache.batch_repeat_interleave(min(batch, len(workload.items)))
        rows = []
        for items in _batched(workload.items, batch):
            if len(items) < batch and len(rows):
                cache.batch_select_indices(self._torch.arange(len(items)))
            output = self._model(self._torch.tensor(items), past_key_values=cache, logits_to_keep=1)
            rows.append(self._labels(output, workload))
            cache.crop(-len(items[0]))
        return np.concatenate(rows)

    def _labels(self, output: Any, workload: Workload) -> np.ndarray:
        return output.logits[:, -1, list(workload.labels)].float().numpy()


def _batched(items: list[list[int]], size: int) -> list[list[list[int]]]:
    return [items[begin : begin + size] for begin in range(0, len(items), size)]


def make_targets(path: Path) -> dict[str, Callable[[], Target]]:
    """Return how to make each target; making one may raise `Unavailable`."""
    from llama_cpp_target import LlamaCpp

    def vllm() -> Target:
        raise Unavailable("the wheels of vLLM on the package index are for CUDA; its CPU build is not published there")

    return {
        "mis prefill_extend": lambda: Mis(path, "prefill_extend"),
        "mis packed": lambda: Mis(path, "packed"),
        "mis auto": lambda: Mis(path, "auto"),
        "mis auto, warm": lambda: Mis(path, "auto", keep=True),
        "mis serial": lambda: Mis(path, "serial"),
        "torch shared cache": lambda: Torch(path, batch=16),
        "torch serial": lambda: Torch(path, batch=None),
        "llama.cpp": lambda: LlamaCpp(path),
        "vllm": vllm,
    }
