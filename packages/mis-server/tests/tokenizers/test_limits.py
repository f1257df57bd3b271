"""Strangers' tokenizers: texts that they read without end or measure are refused, and others are read on.

The tokenizers are read by a real pool of processes. Its limits are lowered within them, so that a case takes a second.
"""

import asyncio
import functools
import json
import os
from collections.abc import Callable
from typing import Any

import pytest

from mis_core.errors import RequestError
from mis_core.tokenization import Tokenizer
from mis_server.tokenizers import pool as tokenizer_pool
from mis_server.tokenizers import process as tokenizer_process
from mis_server.tokenizers.pool import TokenizerPool

pytestmark = pytest.mark.filterwarnings(r"ignore:os\.fork\(\) was called:RuntimeWarning")

Part = dict[str, Any]
HONEST = "honest"


def split(pattern: str) -> Part:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def replaced(pattern: str, content: str) -> Part:
    return {"type": "Replace", "pattern": {"Regex": pattern}, "content": content}


def in_turn(kind: str, *parts: Part) -> Part:
    return {"type": "Sequence", kind: list(parts)}


LONG = "a" * 3000 + "zb"
# Normalizer, pre-tokenizer, text, and what the refusal says.
HOSTILE: dict[str, tuple[Part | None, Part | None, str, str]] = {
    "tries without end": (None, split("a*a*a*a*[bc]"), LONG, "far more time"),
    "tries without end to normalize": (replaced("a*a*a*[bc]", "b"), None, LONG, "far more time"),
    "tries each beginning": (None, in_turn("pretokenizers", *[split("a+a+a+[bc]")] * 9), LONG, "far more time"),
    "gives up": (None, split("(a*)*[bc]"), LONG, "retry-limit"),
    "gives up in alternatives": (None, split("(?:a|a)*b"), LONG, "retry-limit"),
    "gives up to normalize": (replaced("(a|aa)+$", "b"), None, LONG, "retry-limit"),
    "multiplies": (in_turn("normalizers", *[replaced("a", "aaaa")] * 3), None, "a" * (1 << 20), "more memory"),
}
PER_COMMIT = ("tries without end", "gives up", "multiplies")


def tokenizer_of(normalizer: Part | None, pre_tokenizer: Part | None) -> Tokenizer:
    """A tokenizer of lower-case letters."""
    vocabulary = {chr(ord("a") + place): place for place in range(26)}
    model = {"type": "BPE", "vocab": vocabulary, "merges": [], "unk_token": "z"}
    content: Part = {"version": "1.0", "added_tokens": [], "normalizer": normalizer, "pre_tokenizer": pre_tokenizer}
    backend = json.dumps(content | {"model": model, "post_processor": None, "decoder": None})
    stored = {"tokenizer": backend, "chat_template": None}
    return Tokenizer.from_json(json.dumps(stored))


def lowered(text: str, tokenizer: Tokenizer) -> list[int]:
    """Read a text where a job has little time and memory; the processes need hardly any of theirs."""
    tokenizer_process._JOB_S, tokenizer_process._JOB_BYTES = 0.5, 1 << 27
    tokenizer_process.JobLimits().begin(len(text))
    return read(text, tokenizer)


def read(text: str, tokenizer: Tokenizer) -> list[int]:
    return tokenizer.encode(text, field="query").tolist()


def read_all(text: str, tokenizer: Tokenizer) -> int:
    return len(tokenizer.encode_all([HONEST, text], field="items")[0])


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config) -> None:
    """Functions of this module can be read in processes that do not look into the working directory."""
    paths = [os.environ.get("PYTHONPATH", ""), str(pytestconfig.rootpath)]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    monkeypatch.setattr(tokenizer_pool, "_MAX_PROCESSES", 1)


@pytest.mark.parametrize(
    ("normalizer", "pre_tokenizer", "text", "reason"),
    [
        pytest.param(*case, id=name, marks=() if name in PER_COMMIT else (pytest.mark.full,))
        for name, case in HOSTILE.items()
    ],
)
def test_a_text_beyond_limits_is_refused_and_the_next_one_read(
    normalizer: Part | None, pre_tokenizer: Part | None, text: str, reason: str
) -> None:
    async def main() -> None:
        async with TokenizerPool(tokenizer_of(normalizer, pre_tokenizer)) as pool:
            with pytest.raises(RequestError, match=reason) as caught:
                await pool.large(functools.partial(lowered, text), len(text))
            assert (caught.value.code, caught.value.param) == ("tokenizer_failed", None)
            honest = await pool.large(functools.partial(read, HONEST), len(HONEST))
            assert honest == [ord(letter) - ord("a") for letter in HONEST]

    asyncio.run(main())


BODIES = {
    "/v1/score": {"query": LONG, "items": ["b"], "label_token_ids": [1]},
    "/v1/completions": {"prompt": LONG, "max_tokens": 1},
    "/tokenize": {"prompt": LONG},
}


@pytest.mark.parametrize(("path", "body"), BODIES.items(), ids=BODIES)
def test_the_reply_names_the_failure(
    connected: Callable[..., Any], pretended: Any, tokenizers: Any, path: str, body: dict[str, Any]
) -> None:
    hostile = type(tokenizers)(tokenizer_of(None, split("(a*)*[bc]")))
    with connected(pretended, hostile) as http:
        reply = http.post(path, json=body)
    error = reply.json()["error"]
    assert (reply.status_code, error["code"]) == (400, "tokenizer_failed")
    assert "retry-limit" in error["message"]


@pytest.mark.full
@pytest.mark.parametrize("letters", ["ab ", "a", "一"])
def test_the_longest_honest_text_is_read(tokenizer: Tokenizer, letters: str) -> None:
    text = letters * ((1 << 22) // len(letters))

    async def main() -> int:
        async with TokenizerPool(tokenizer) as pool:
            return await pool.large(functools.partial(read_all, text), len(text.encode()))

    assert asyncio.run(main()) > 0
