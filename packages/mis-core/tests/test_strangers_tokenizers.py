"""Tokenizers whose patterns read without end, as `Engine` meets them: failures refuse a text, and all are loaded.

What takes time and memory without failing is ended by the server alone (its `test_limits.py`).
"""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from mis_core.errors import ModelError, RequestError
from mis_core.tokenization import Tokenizer

LETTERS = {chr(ord("a") + place): place for place in range(26)}


def tokenizer_of(pattern: str, **model: Any) -> Tokenizer:
    content: dict[str, Any] = {"version": "1.0", "added_tokens": [], "normalizer": None}
    content["pre_tokenizer"] = {
        "type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False,
    }  # fmt: skip
    content |= {"post_processor": None, "decoder": None}
    content["model"] = {"type": "BPE", "vocab": LETTERS, "merges": [], "unk_token": "z"} | model
    return Tokenizer.from_json(json.dumps({"tokenizer": json.dumps(content), "chat_template": None}))


@pytest.mark.parametrize(
    ("tokenizer", "reason"),
    [
        pytest.param(tokenizer_of("(a*)*[bc]"), "retry-limit", id="panics"),
        pytest.param(tokenizer_of("a", type="WordLevel", unk_token="[UNK]"), "Missing", id="raises"),
    ],
)
def test_a_text_that_the_library_fails_on_is_refused(tokenizer: Tokenizer, reason: str) -> None:
    text = "a" * 300 + "qb"
    reads = (
        lambda: tokenizer.encode(text),
        lambda: tokenizer.encode_all(["b", text]),
        lambda: tokenizer.join("b", ["b", text]),
        lambda: tokenizer.starts(text),
        lambda: tokenizer.cut_after("", [text], [3]),
        lambda: tokenizer.label_id(text),
    )
    for read in reads:
        with pytest.raises(RequestError, match=reason) as caught:
            read()
        assert caught.value.code == "tokenizer_failed"
    assert tokenizer.encode("b").tolist() == [1]


@pytest.mark.parametrize("ids", [[99], [4294967295]], ids=["large", "negative"])
def test_post_processor_ids_outside_the_vocabulary_are_refused(ids: list[int]) -> None:
    content = json.loads(tokenizer_of("a").to_json())
    backend = json.loads(content["tokenizer"])
    backend["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "x", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"x": {"id": "x", "ids": ids, "tokens": ["x"]}},
    }
    content["tokenizer"] = json.dumps(backend)
    tokenizer = Tokenizer.from_json(json.dumps(content)).within(26)
    for read in (lambda: tokenizer.encode("b"), lambda: tokenizer.join("b", ["c"])):
        with pytest.raises(RequestError) as caught:
            read()
        assert caught.value.code == "token_id_exceeds_vocab"


def test_a_tokenizer_that_fails_on_every_text_is_no_model(tmp_path: Path) -> None:
    backend = json.loads(json.loads(tokenizer_of("a").to_json())["tokenizer"])
    backend["model"] = {"type": "WordLevel", "vocab": {"b": 0}, "unk_token": "[UNK]"}
    (tmp_path / "tokenizer.json").write_text(json.dumps(backend))
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    with pytest.raises(ModelError, match=r"fails on a text of one letter: .*Missing"):
        Tokenizer.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    "pattern",
    [
        pytest.param("(?:" * 2000 + "a" + ")" * 2000, id="nested"),
        pytest.param("(?:" + "a?" * 50_000 + ")b", id="long"),
    ],
)
def test_a_pattern_too_hard_to_read_only_prevents_sharing(pattern: str) -> None:
    """Reading it took a traceback, or minutes: as many lines of Python now as a pattern of a letter takes, or so."""
    most = 100 * lines_to_load("a")
    assert lines_to_load(pattern) < most
    tokenizer = tokenizer_of(pattern)
    assert tokenizer.join("one two ", ["ab"]).sequence(0).tolist() == tokenizer.encode("one two ab").tolist()


def lines_to_load(pattern: str) -> int:
    """How many lines of Python loading a tokenizer runs; far too many end the test."""
    lines = 0

    def count(frame: Any, event: str, argument: Any) -> Any:
        nonlocal lines
        lines += 1
        if lines > 1_000_000:
            pytest.fail("loading takes far too long")
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        tokenizer_of(pattern)
    finally:
        sys.settrace(before)
    return lines
