"""The dialect of OpenAI's completions, which knows nothing of labels: they must be among the most probable tokens."""

import itertools
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from mis_bench.targets.base import CallFailed, Reply, TargetUnavailable
from mis_bench.targets.connection import Connection
from mis_bench.targets.dialect import PROBE, Dialect, checked_scores
from mis_bench.targets.options import choice, positive
from mis_bench.workload import Workload
from mis_core.errors import ModelError
from mis_core.tokenization import Tokenizer


class OpenAI(Dialect):
    """`/v1/completions` of one token behind every item, with the most probable tokens' log-probabilities.

    Options: `logprobs`, how many tokens to ask for (5, the most that OpenAI allows; other servers allow more);
    `prompts_per_call` (32), whose calls follow one another; `token_ids=true`, which asks a server of vLLM's kind to
    name tokens by id. Otherwise labels are found by their text, for which a directory must hold the tokenizer.
    """

    BACKEND: ClassVar[str] = "openai"
    OPTIONS: ClassVar[tuple[str, ...]] = ("logprobs", "prompts_per_call", "token_ids")

    def __init__(self, connection: Connection, model: str, options: dict[str, str], directory: Path | None) -> None:
        super().__init__(connection, model, options, directory)
        self._logprobs = positive(options, "logprobs", 5)
        self._prompts_per_call = positive(options, "prompts_per_call", 32)
        self._tokenizer: Tokenizer | None = None
        if choice(options, "token_ids", "false", "true") == "false":
            if directory is None:
                raise TargetUnavailable("The target openai needs --model for its tokenizer, or token_ids=true.")
            try:
                self._tokenizer = Tokenizer.from_pretrained(directory)
            except ModelError as error:
                raise TargetUnavailable(error.message) from None

    def score(self, workload: Workload, *, timeout_s: float | None = None) -> Reply:
        """Ask for the next token of every item."""
        names = [self._name(label) for label in workload.label_token_ids.tolist()]
        rows = []
        for begin in range(0, workload.num_items, self._prompts_per_call):
            prompts = [_joined(workload, item) for item in workload.items[begin : begin + self._prompts_per_call]]
            for place, found in enumerate(self._most_probable(prompts, timeout_s), begin):
                rows.append([_logprob(found, name, place) for name in names])
        logprobs = checked_scores(rows, workload)
        if not workload.apply_softmax:
            return Reply(np.exp(logprobs))
        weights = np.exp(logprobs - logprobs.max(axis=1, keepdims=True))
        return Reply(weights / weights.sum(axis=1, keepdims=True))

    def probe(self, timeout_s: float) -> None:
        """Ask for the next token of one item, whichever that is."""
        self._most_probable([_joined(PROBE, PROBE.items[0])], timeout_s)

    def details(self) -> dict[str, Any]:
        """`GET /version`, where there is one."""
        try:
            return {"version": self.connection.get("/version", timeout_s=5.0).get("version")}
        except CallFailed:
            return {}

    def _most_probable(self, prompts: list[Any], timeout_s: float | None) -> list[dict[str, float]]:
        """Return log-probabilities by token, for each prompt."""
        body = {
            "model": self.model,
            "prompt": prompts,
            "max_tokens": 1,
            "temperature": 0,
            "logprobs": self._logprobs,
        } | ({"return_tokens_as_token_ids": True} if self._tokenizer is None else {})
        reply = self.connection.post("/v1/completions", body, timeout_s=timeout_s)
        try:
            found = {int(each["index"]): each["logprobs"]["top_logprobs"][0] for each in reply["choices"]}
        except (IndexError, KeyError, TypeError, ValueError):
            raise CallFailed("missing_scores", "The reply has no `top_logprobs` for each choice.") from None
        if sorted(found) != list(range(len(prompts))):
            raise CallFailed("shape_mismatch", f"The reply has {len(found)} choices for {len(prompts)} prompts.")
        if not all(isinstance(each, dict) for each in found.values()):
            raise CallFailed("missing_scores", "`top_logprobs` holds no log-probabilities by token.")
        return [found[index] for index in range(len(prompts))]

    def _name(self, label: int) -> str:
        return f"token_id:{label}" if self._tokenizer is None else self._tokenizer.decode([label])


def _joined(workload: Workload, item: Any) -> Any:
    if isinstance(workload.query, str):
        return workload.query + item
    return list(itertools.chain(workload.query.tolist(), item.tolist()))


def _logprob(found: dict[str, float], name: str, place: int) -> float:
    if name not in found:
        raise CallFailed(
            "missing_scores",
            f"The label {name!r} is not among the {len(found)} most probable tokens after item {place}; "
            "this target cannot tell its probability.",
        )
    return found[name]
