"""Tokenizers: the same ids through AutoTokenizer, and each family's habits."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from mis_testing.shapes import FAMILIES, GEMMA, Family
from mis_testing.tokenizer import HABITS, build_tokenizer

# What can make the ids of `query + item` differ from the ids of both halves: white space and newline
# runs that join, digits that group, marks that compose or reorder under NFC, special tokens that form
# across the seam, contractions, and bytes of one character on both sides.
_PIECES = (
    " ", "  ", " \n", " \n\n ", "\n", "\n\n", "\r\n", "\t", "\u00a0", "\u3000", "yes", " yes", "no", "Maybe", "word",
    "s", "'", "'s", "n't", "'LL", "1", "12", "2024", "e", "é", "e\u0301", "\u0301", "\u0323", "\u0307", "q\u0323\u0307",
    "\u1100", "\u1161", "\u11a8", "ü", "ß", "中文", "。", "日本", "🙂", "👨\u200d👩\u200d👧", "\u200d", ".", "...",
    "!?", "#", "_", "<|", "|>", "<", "|", ">", "im_start", "endoftext", "begin_of_text", "<|im_start|>", "<|im_end|>",
    "<|endoftext|>", "<|begin_of_text|>", "<think>", "</think>", "think",
)  # fmt: skip


def seam_texts() -> st.SearchStrategy[str]:
    """Texts, possibly empty, whose tokens may change where two of them are joined."""
    anything = st.characters(exclude_categories=["Cs"])  # lone surrogates are not text
    return st.lists(st.one_of(st.sampled_from(_PIECES), anything), max_size=8).map("".join)


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> Family:
    return request.param


@pytest.fixture(scope="module")
def tokenizer(family: Family, checkpoint_factory: Callable[..., Path]) -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.AutoTokenizer.from_pretrained(checkpoint_factory(family))


@pytest.mark.parametrize("label", [" yes", " no", " maybe", "yes", "no", " Yes", " No", "Yes", "No"])
def test_labels_are_single_tokens(tokenizer: Any, label: str) -> None:
    ids = tokenizer(label, add_special_tokens=False).input_ids
    assert len(ids) == 1
    assert tokenizer.decode(ids) == label


@settings(deadline=None)
@given(text=seam_texts())
def test_autotokenizer_gives_the_ids_of_the_file(tokenizer: Any, family: Family, text: str) -> None:
    ids = tokenizer(text).input_ids
    assert ids == build_tokenizer(family).encode(text).ids
    assert ids == Tokenizer.from_file(f"{tokenizer.name_or_path}/tokenizer.json").encode(text).ids


def test_ids_fit_the_models_vocabulary(tokenizer: Any) -> None:
    config = json.loads(Path(tokenizer.name_or_path, "config.json").read_text())
    assert max(tokenizer.get_vocab().values()) < config["vocab_size"]
    assert config["eos_token_id"] == tokenizer.eos_token_id


def test_some_families_add_a_token_in_front(tokenizer: Any, family: Family) -> None:
    first = tokenizer.decode(tokenizer("yes").input_ids[:1])
    bos = {"llama": "<|begin_of_text|>", "mistral": "<s>", "ministral": "<s>", "gemma2": "<bos>", "gemma3": "<bos>"}
    assert first == bos.get(family, "yes")


def test_digits_split_as_the_family_does(family: Family) -> None:
    # A letter keeps the white space rule out of the way.
    pieces = build_tokenizer(family).pre_tokenizer.pre_tokenize_str("a20245")
    by_three, whole = ("llama", "smollm3"), ("gemma2", "gemma3")
    expected = ["a", "202", "45"] if family in by_three else ["a20245"] if family in whole else ["a", *"20245"]
    assert [piece for piece, _ in pieces] == expected


def test_only_mistral_parts_words_at_capitals(family: Family) -> None:
    pieces = [piece for piece, _ in build_tokenizer(family).pre_tokenizer.pre_tokenize_str("fineDay")]
    assert pieces == (["fine", "Day"] if family in ("mistral", "ministral") else ["fineDay"])


def test_only_qwen_normalises(family: Family) -> None:
    tokenizer = build_tokenizer(family)
    same = tokenizer.encode("e\u0301").ids == tokenizer.encode("\u00e9").ids
    assert same == (family in ("qwen2", "qwen3", "qwen3_5"))


def test_special_tokens_are_single_ids_after_the_vocabulary(family: Family) -> None:
    """But for Gemma's, which come first."""
    tokenizer = build_tokenizer(family)
    ids = tokenizer.encode(HABITS[family].eos, add_special_tokens=False).ids
    assert len(ids) == 1
    assert ids == [1] if family in GEMMA else ids[0] >= tokenizer.get_vocab_size(with_added_tokens=False)


def test_chat_template_renders(tokenizer: Any) -> None:
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Is it red?"}], tokenize=False, add_generation_prompt=True
    )
    assert "Is it red?" in text
    ends = {"[INST]": "[/INST]", "<|im_": "assistant\n", "<start_of_turn>": "model\n"}
    assert text.endswith(next((end for mark, end in ends.items() if mark in text), "\n\n"))
