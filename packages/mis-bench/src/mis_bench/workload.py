"""Workloads: the same name gives the same tokens, on every machine and with every version.

A name is `KIND-Q-N-L`, Q query tokens and N items of L tokens each, or one of `PRODUCTION`; `@8` at its end asks
for 8 labels, or for questions of System One with 8 options. The KINDs in `Task` ask for something other than scores.
The canonical workload is `canonical-2000-500-20`. The tokens are drawn from the name (`drawing`); `Workload.sha256`
proves it.
"""

import hashlib
import json
import re
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Int32

from mis_bench import system_one
from mis_bench.drawing import KINDS, TOKEN_IDS, Sizes, Tokens, labels, state_and_questions, uniform

Task = Literal["score", "rerank", "decisions", "systemone", "loglikelihoods"]
"""What is asked about a query and items; all but the first are KINDs of names."""

CANONICAL = "canonical-2000-500-20"

MAX_TOKENS = 2_000_000
"""Most tokens of a workload, query and items together; what a server accepts by default."""

MAX_LABELS = 1024
"""Most labels of a workload; what a server accepts by default."""

_NUMBER = "([1-9][0-9]{0,17})"
_NAME = re.compile(f"([a-z][a-z0-9_]*)-{_NUMBER}-{_NUMBER}-{_NUMBER}")


class WorkloadNameError(ValueError):
    """A name that describes no workload; the message says what one looks like."""


@dataclass(frozen=True, slots=True, eq=False)
class Workload:
    """One request, as token ids or as texts.

    Attributes:
        name: What it was built from.
        query: Shared tokens, `[query_tokens]`, or text; for decisions, what they are about.
        items: Tokens of each item, `[item_tokens]` each, or texts: documents, statements, endings of prompts, and
            questions of System One as JSON.
        label_token_ids: Labels of scores, the same for all items, `[labels]`; none for other tasks.
        apply_softmax: For scores: softmax over the labels instead of full-vocabulary probabilities.
        vocab_size: Size of the vocabulary that ids were folded into (`within`), if they were.
        task: What is asked.
    """

    name: str
    query: Int32[np.ndarray, " query_tokens"] | str
    items: tuple[Int32[np.ndarray, " item_tokens"] | str, ...]
    label_token_ids: Int32[np.ndarray, " labels"]
    apply_softmax: bool = False
    vocab_size: int | None = None
    task: Task = "score"

    @property
    def num_items(self) -> int:
        """Number of items."""
        return len(self.items)

    @property
    def num_labels(self) -> int:
        """Number of labels; 1 for tasks other than scores, whose items get one number each."""
        return len(self.label_token_ids) if self.task == "score" else 1

    @property
    def num_tokens(self) -> int:
        """Tokens of the query, once, and of every item; for a text its words, since there is no tokenizer."""
        return sum(len(each.split() if isinstance(each, str) else each) for each in (self.query, *self.items))

    @property
    def request(self) -> dict[str, Any]:
        """What our server and engine are asked: the body of `POST /v1/score` and the keywords of `Engine.score`.

        For other tasks, those of `/v1/rerank`, `/v1/decisions`, `/v1/systemone`, and `/v1/completions`, with a prompt
        for every item, as lm-evaluation-harness asks it.
        """
        query, items = _plain(self.query), [_plain(item) for item in self.items]
        if self.task == "rerank":
            return {"query": query, "documents": items}
        if self.task == "decisions":
            return {"input": query, "questions": [{"type": "predicate", "instructions": item} for item in items]}
        if self.task == "systemone":
            return system_one.body(str(query), [str(item) for item in items])
        if self.task == "loglikelihoods":
            return {"prompt": [[*query, *item] for item in items], "max_tokens": 0, "echo": True, "logprobs": 1}
        body: dict[str, Any] = {"query": query, "items": items, "label_token_ids": self.label_token_ids.tolist()}
        return body | {"apply_softmax": True} if self.apply_softmax else body

    @property
    def sha256(self) -> str:
        """Checksum of `request` as JSON with sorted keys and no white space, in UTF-8."""
        return hashlib.sha256(_canonical_json(self.request)).hexdigest()

    def to_json(self) -> str:
        """Return name, checksum and request as one JSON object on one line."""
        document = {"name": self.name, "sha256": self.sha256, "request": self.request}
        return _canonical_json(document).decode()

    def within(self, vocab_size: int | None) -> "Workload":
        """Return the workload with every token id folded into a vocabulary, for tiny checkpoints; texts stay.

        None changes nothing.
        """
        if vocab_size is None:
            return self

        def folded(tokens: Tokens) -> Tokens:
            return tokens if isinstance(tokens, str) else tokens % vocab_size

        return replace(
            self,
            query=folded(self.query),
            items=tuple(map(folded, self.items)),
            label_token_ids=self.label_token_ids % vocab_size,
            vocab_size=vocab_size,
        )

    def another(self, number: int) -> "Workload":
        """Return a workload of the same sizes whose query and items no earlier one had; 0 is this one.

        Ids are shifted within `TOKEN_IDS`, or within the vocabulary that they were folded into; texts get the number
        in front.
        """
        if number == 0:
            return self
        if isinstance(self.query, str):
            numbered = system_one.numbered if self.task == "systemone" else _numbered
            items = tuple(numbered(number, str(item)) for item in self.items)
            return replace(self, query=_numbered(number, self.query), items=items)
        ids = TOKEN_IDS if self.vocab_size is None else range(self.vocab_size)

        def shifted(tokens: Tokens) -> Tokens:
            assert not isinstance(tokens, str), "query and items are of one kind"
            return (ids.start + (tokens - ids.start + number) % len(ids)).astype(np.int32)

        return replace(self, query=shifted(self.query), items=tuple(map(shifted, self.items)))


PRODUCTION = {
    "track_low": Sizes(183, 16, 26),
    "track_mean": Sizes(420, 96, 55),
    "track_high": Sizes(483, 128, 63),
    "home_low": Sizes(155, 8, 30),
    "home_mean": Sizes(275, 34, 50),
    "home_high": Sizes(2375, 256, 70),
}
"""Sizes of requests met in production: recommendations of tracks and of a home page, by load."""


def task_of(name: str) -> Task:
    """Return what a workload or a trace asks, by its name."""
    kind = re.split("[-:]", name, maxsplit=1)[0]
    return next((task for task in get_args(Task) if task == kind), "score")


def build_workload(name: str = CANONICAL) -> Workload:
    """Build the workload that a name describes.

    Args:
        name: `KIND-Q-N-L`, such as `canonical-2000-500-20`, or a name of `PRODUCTION`, such as `track_low`; both may
            end in `@` and a number of labels, or of options for System One. The KINDs are those of `KINDS` and `Task`;
            any other word stands for other tokens.

    Raises:
        WorkloadNameError: the name has another form, or asks for more than `MAX_TOKENS` tokens or `MAX_LABELS` labels.
    """
    inputs, at, digits = name.partition("@")
    match = _NAME.fullmatch(inputs)
    kind = match[1] if match else inputs
    sizes = Sizes(*map(int, match.groups()[1:])) if match else PRODUCTION.get(inputs)
    if sizes is None or (at and not re.fullmatch(_NUMBER, digits)):
        raise WorkloadNameError(
            f"{name[:40]!r} is not a workload. Write KIND-Q-N-L for Q query tokens and N items of L tokens, such as "
            f"{CANONICAL}; or one of {', '.join(PRODUCTION)}; add @8 for 8 labels."
        )
    task = task_of(name)
    if at and task not in ("score", "systemone"):
        raise WorkloadNameError(f"{name[:40]!r}: only scores have labels; leave out @{digits}.")
    num_labels = (int(digits) if at else 2) if task == "score" else 0
    options = (int(digits) if at else system_one.OPTIONS) if task == "systemone" else 0
    words = sizes.total + sizes.items * system_one.words_of(0, options)
    for count, most, what in (
        (words, MAX_TOKENS, "tokens"),
        (num_labels, MAX_LABELS, "labels"),
        (options, system_one.MOST_OPTIONS, "options"),
    ):
        if count > most:
            raise WorkloadNameError(f"{name} has {count:,} {what}; at most {most:,} are allowed.")
    if options == 1:
        raise WorkloadNameError(f"{name[:40]!r}: a choice needs at least 2 options.")
    if options:
        return Workload(name, *state_and_questions(inputs, sizes, options), labels(0), task=task)
    query, items = KINDS.get(kind, uniform)(inputs, sizes)
    return Workload(name, query, items, labels(num_labels), task=task)


def _plain(tokens: Tokens) -> list[int] | str:
    return tokens if isinstance(tokens, str) else tokens.tolist()


def _numbered(number: int, text: str) -> str:
    """Put a number in front of a text, behind the space with which it may begin."""
    return f" {number}{text}" if text.startswith(" ") else f"{number} {text}"


def _canonical_json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
