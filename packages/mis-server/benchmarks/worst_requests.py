"""The worst requests that a server admits, and worse ones, for every route that takes text."""

import json
import random
from typing import Any

_LETTERS = "abcdefghijklmnopqrstuvwxyz"

Bodies = list[tuple[str, dict[str, Any]]]
"""Paths and what is sent to them."""


def worst_requests(small: bool, head: bool) -> list[tuple[str, bytes]]:
    """Return paths and bodies, of every path first one that is admitted.

    Args:
        small: Whether they are for machines that are to be spared.
        head: Whether they are for a model with a classification head.
    """
    scale = 8 if small else 1
    worst = Worst(scale, random.Random(0))
    bodies = [*worst.scores(), *worst.reranks(), *worst.texts()]
    bodies += worst.classifications() if head else [
        *worst.chats(), *worst.decisions(), *worst.system_one(), *worst.completions()
    ]  # fmt: skip
    return [(path, json.dumps(body, ensure_ascii=False).encode()) for path, body in bodies]


class Worst:
    """The worst bodies, a list for each kind of path, which begins with one that is just below the limits."""

    def __init__(self, scale: int, rng: random.Random) -> None:
        """Make texts without boundaries; a `scale` above one makes all of it so much smaller."""
        self._scale = scale
        self._rng = rng
        self._letters = "".join(rng.choices(_LETTERS, k=2_000_000 // scale))
        self._rare = "".join(map(chr, rng.choices(range(0x10000, 0x1F000), k=1_000_000 // scale)))
        self._documents = ["-" * 1000] * (1000 // scale)

    def scores(self) -> Bodies:
        """Bodies of `/v1/score`."""
        scale, letters, label = self._scale, self._letters, {"label_token_ids": [1]}
        items = 2000 // scale
        bodies = [
            {"query": "a", "items": [self._rare[:24]] * (20_000 // scale)} | label,
            {"query": "a", "items": [self._rare[:200]] * (20_000 // scale)} | label,
            {"query": "a " + "-" * 65_000, "items": ["x"] * 1000} | label,  # refused
            {"query": "a " + "-" * 65_000, "items": ["x"] * (60 // scale)} | label,
            {"query": "a " + "-" * 1000, "items": ["x"] * 129} | label,
            {"query": "-" * 1000, "items": ["x"] * 12, "item_first": True} | label,
            {"query": "a" * 120_000, "items": ["x"]} | label,
            {"query": letters, "items": ["x"]} | label,
            {"query": "a", "items": ["b"], "labels": [letters]},
            {"query": "a", "items": ["b"], "labels": list(letters)},
            {"query": [1], "items": [[7] * 250] * (60_000 // scale)} | label,
            {"query": [1], "items": [[[]]] * (10_000_000 // scale)} | label,
            {"query": [1], "items": [[2]] * items, "label_token_ids": list(range(900))},
            {"query": [1], "items": [[2]] * items, "label_token_ids": [list(range(900)), *[[3]] * (items - 1)]},
        ]
        return [("/v1/score", body) for body in bodies]

    def reranks(self) -> Bodies:
        """Bodies of `/v1/rerank`."""
        scale = self._scale
        bodies = [
            {"query": "a", "documents": self._documents},
            {"query": "a", "documents": self._documents, "max_tokens_per_doc": 9},
            {"query": "a", "documents": self._words(20_000), "return_documents": True},
            {"query": "a", "documents": [self._letters]},
            {"query": self._letters[:120_000], "documents": ["a"]},
            {"query": self._letters[:5000], "documents": [self._rare[:5000]] * (100 // scale)},
            {"query": "a", "documents": [self._rare[:200]] * (20_000 // scale), "max_tokens_per_doc": 3},
        ]
        return [("/v1/rerank", body) for body in bodies]

    def texts(self) -> Bodies:
        """Bodies of `/tokenize` and `/detokenize`."""
        return [
            ("/tokenize", {"prompt": "-" * (4_000_000 // self._scale)}),
            ("/tokenize", {"prompt": self._letters, "return_token_strs": True}),
            ("/tokenize", {"prompt": self._rare}),
            ("/tokenize", {"prompt": self._letters[:120_000]}),
            ("/detokenize", {"tokens": list(range(100, 900)) * (1000 // self._scale)}),
        ]

    def classifications(self) -> Bodies:
        """Bodies of `/v1/classify` and `/v1/token_classify`, of which a model has one."""
        bodies = [
            {"input": self._words(20_000)},
            {"input": self._documents},
            {"input": [self._rare[:500]] * (8000 // self._scale)},
            {"input": [[7]] * (20_000 // self._scale)},
            {"input": [[7] * 4000] * (400 // self._scale)},
            {"input": self._letters},
            {"input": [self._letters] * 3},  # refused
        ]
        return [(path, body) for path in ("/v1/classify", "/v1/token_classify") for body in bodies]

    def chats(self) -> Bodies:
        """Bodies of `/v1/chat/completions`."""
        scale, letters, user = self._scale, self._letters, {"role": "user", "content": "a"}
        arguments = json.dumps({"a": list(range(100_000 // scale))})
        call = {"type": "function", "function": {"name": "a", "arguments": arguments}}
        parts = [{"type": "text", "text": "-" * 1000}] * (4096 // scale)
        one = {"max_tokens": 1, "n": 128, "logprobs": True, "top_logprobs": 20}
        bodies = [
            {"messages": [user], "label_token_ids": list(range(900)), "stream": True},
            {"messages": [user | {"content": letters[:3000]}]},
            {"messages": [user] * 500},
            {"messages": [user | {"content": letters}]},
            {"messages": [user] * 4096},
            {"messages": [user | {"content": parts}]},
            {"messages": [{"role": "assistant", "tool_calls": [call]}]},
            {"messages": [user], "labels": list(letters)},
        ]
        return [("/v1/chat/completions", body | one) for body in bodies]

    def decisions(self) -> Bodies:
        """Bodies of `/v1/decisions`."""
        scale, letters = self._scale, self._letters
        asked = {"type": "predicate", "instructions": letters[:500]}
        choices = [{"value": f"{number} {letters[number : number + 20]}"} for number in range(80)]
        rotated = {"type": "choice", "instructions": "-" * 500, "choices": choices}
        bodies = [
            {"input": letters[:3000], "questions": [asked] * (400 // scale)},
            {"input": "a", "questions": [rotated] * (400 // scale), "choice_order": "independent"},
            {"input": letters, "questions": [asked] * 400},
            {"input": "-" * 65_000, "questions": [asked] * 400},
        ]
        return [("/v1/decisions", body) for body in bodies]

    def system_one(self) -> Bodies:
        """Bodies of `/v1/systemone`, by all its names, and of many states."""
        scale, letters = self._scale, self._letters
        asked = {str(number): {"type": "noul", "instructions": letters[:500]} for number in range(400 // scale)}
        choices = {f"{number} {letters[number : number + 20]}": None for number in range(80)}
        rotated = {str(number): {"type": "choice", "criteria": choices} for number in range(400 // scale)}
        options = {f"{number} {letters[number : number + 8]}": None for number in range(255)}
        many = {str(number): {"type": "choice", "criteria": options} for number in range(400 // scale)}
        one = {"state": letters[:3000], "questions": asked}
        return [
            *((path, one) for path in ("/v1/systemone", "/api/v1/systemone", "/api/alpha/decisions")),
            ("/v1/systemone", {"state": "a", "questions": rotated, "x_choice_order": "independent"}),
            ("/v1/systemone", {"state": letters[:3000], "questions": many}),
            ("/v1/systemone", {"state": letters[:120_000], "questions": many}),
            ("/v1/systemone", {"state": letters, "questions": asked}),
            ("/v1/systemone/batch", {"states": [letters[:3000]] * (160 // scale), "questions": {"0": asked["0"]}}),
            ("/v1/systemone/batch", {"states": ["a"] * (160 // scale), "questions": asked}),
            ("/v1/systemone/batch", {"states": self._words(2000), "questions": {"0": asked["0"]}}),
        ]

    def completions(self) -> Bodies:
        """Bodies of `/v1/completions`."""
        scale, letters, one = self._scale, self._letters, {"max_tokens": 1, "logprobs": 20}
        bodies = [
            {"prompt": self._words(20_000)},
            {"prompt": [[7]] * (20_000 // scale), "stream": True},
            {"prompt": self._words(64), "n": 128},
            {"prompt": [[7] * 1000] * (90 // scale), "echo": True},
            {"prompt": self._words(2000), "echo": True, "stream": True},
            {"prompt": letters, "echo": True},
            {"prompt": "-" * 65_000, "echo": True},
            {"prompt": self._documents, "echo": True},
            {"prompt": "a", "n": 128},
        ]
        return [("/v1/completions", body | one) for body in bodies]

    def _words(self, count: int) -> list[str]:
        """Return different texts of 20 letters."""
        return ["".join(self._rng.choices(_LETTERS, k=20)) for _ in range(count // self._scale)]
