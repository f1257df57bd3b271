"""The dialect of OpenAI's completions, which knows nothing of labels: they must be among the most probable tokens."""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from mis_bench.targets.base import CallFailed, Reply, TargetUnavailable
from mis_bench.targets.client import Client
from mis_bench.targets.dialect import TOLD_WITHIN_S, Dialect, Json, checked_scores, in_order
from mis_bench.targets.local import scores_of
from mis_bench.targets.options import Declared
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
    PATH: ClassVar[str] = "/v1/completions"
    OPTIONS: ClassVar[Declared] = {"logprobs": 5, "prompts_per_call": 32, "token_ids": ("false", "true")}

    def __init__(self, options: Mapping[str, Any], directory: Path | None) -> None:
        super().__init__(options, directory)
        self._prompts_per_call: int = options["prompts_per_call"]
        self._fields: Json = {"max_tokens": 1, "temperature": 0, "logprobs": options["logprobs"]}
        self._tokenizer: Tokenizer | None = None
        if options["token_ids"] == "true":
            self._fields["return_tokens_as_token_ids"] = True
            return
        if directory is None:
            raise TargetUnavailable("The target openai needs --model for its tokenizer, or token_ids=true.")
        try:
            self._tokenizer = Tokenizer.from_pretrained(directory)
        except ModelError as error:
            raise TargetUnavailable(error.message) from None

    def bodies(self, workload: Workload) -> list[Json]:
        """Prompts of query and item, some in each request."""
        prompts = [_joined(workload, item) for item in workload.items]
        size = self._prompts_per_call
        return [{"prompt": prompts[begin : begin + size], **self._fields} for begin in range(0, len(prompts), size)]

    def reply(self, answers: Sequence[Json], workload: Workload) -> Reply:
        """Log-probabilities of the labels, found by name, as probabilities or as a softmax over the labels."""
        names = [self._name(label) for label in workload.label_token_ids.tolist()]
        found = self._most_probable(answers, workload.num_items)
        rows = [[_logprob(each, name, place) for name in names] for place, each in enumerate(found)]
        logprobs = checked_scores(rows, workload)
        return Reply(scores_of(logprobs, None if workload.apply_softmax else np.zeros(len(rows))))

    def check_probe(self, answers: Sequence[Json]) -> None:
        """Any most probable tokens will do."""
        self._most_probable(answers, 1)

    async def details(self, client: Client) -> Json:
        """`GET /version`, where there is one."""
        try:
            return {"version": (await client.get("/version", timeout_s=TOLD_WITHIN_S)).get("version")}
        except CallFailed:
            return {}

    def _most_probable(self, answers: Sequence[Json], num_items: int) -> list[dict[str, float]]:
        """Return log-probabilities by token, for each item."""
        found: list[dict[str, float]] = []
        for answer in answers:
            try:
                choices = {int(each["index"]): each["logprobs"]["top_logprobs"][0] for each in answer["choices"]}
            except (IndexError, KeyError, TypeError, ValueError):
                raise CallFailed("missing_scores", "The reply has no `top_logprobs` for each choice.") from None
            found += in_order(choices, min(self._prompts_per_call, num_items - len(found)), "choices")
        if not all(isinstance(each, dict) for each in found):
            raise CallFailed("missing_scores", "`top_logprobs` holds no log-probabilities by token.")
        return found

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
