"""Tokenizers of GGUF files: the ids of the tokenizers they were made of, and llama.cpp's of the same file."""

import functools
import importlib.util
import re
from pathlib import Path
from typing import Any

import gguf
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers, trainers

from mis_core.checkpoints.gguf_tokenizer import build_tokenizer
from mis_core.errors import ModelError
from mis_core.tokenization import Tokenizer
from mis_testing.corpus import corpus
from mis_testing.gguf_file import tokenizer_fields
from mis_testing.tokenizer import build_tokenizer as trained

_FAMILIES = {"llama-bpe": "llama", "qwen2": "qwen3"}
# Words with marks and digits, white space of every kind, contractions, special tokens, and what ends in the middle.
_PIECES = [
    "a",
    "I'll",
    "'S",
    "ﬁ",
    "é",
    "e\u0301",
    "名前",
    "١٢",
    "12345",
    " 7",
    "½",
    "\n\n",
    " \r\n",
    "\t ",
    "   ",
    "\u3000",
    "!?",
    "…",
    "🙂",
    "👩‍🚀",
    "<|im_end|>",
    "<|eot_id|>",
    "<think>",
    "<|im_",
    "_x",
    "A1b2",
    "\u017f",
    "İ",
]
texts = st.lists(st.one_of(st.sampled_from(_PIECES), st.text(max_size=3)), max_size=12).map("".join)


@functools.cache
def smollm() -> tokenizers.Tokenizer:
    """Train a tokenizer as SmolLM2's: digits alone, and GPT-2's pattern."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=900, show_progress=False, initial_alphabet=alphabet, special_tokens=special
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    return tokenizer


@functools.cache
def both(pre: str) -> tuple[Tokenizer, Tokenizer]:
    """Return the tokenizer that GGUF fields give, and the one that they were made of."""
    original = smollm() if pre == "smollm" else tokenizers.Tokenizer.from_str(trained(_FAMILIES[pre]).to_str())
    # llama.cpp does not normalise, so files cannot ask for it.
    original.normalizer = None
    fields = fields_of(original, pre)
    return Tokenizer(build_tokenizer(fields).backend), Tokenizer(original)


def fields_of(tokenizer: tokenizers.Tokenizer, pre: str) -> dict[str, Any]:
    fields = {f"ggml.{name}": value for name, value in tokenizer_fields(tokenizer, pre).items()}
    bos = tokenizer.token_to_id("<|begin_of_text|>")
    return fields if bos is None else fields | {"ggml.bos_token_id": bos}


@pytest.mark.parametrize("pre", ["smollm", "llama-bpe", "qwen2"])
@given(text=texts)
@settings(max_examples=150)
def test_ids_are_those_of_the_tokenizer_it_was_made_of(pre: str, text: str) -> None:
    ours, original = both(pre)
    ids = ours.encode(text)
    assert ids.tolist() == original.encode(text).tolist()
    assert ours.decode(ids) == original.decode(ids)


def test_digits_are_split_as_the_word_says() -> None:
    lens = {pre: len(both(pre)[0].encode("777777", add_special_tokens=False)) for pre in ("smollm", "qwen2")}
    assert lens == {"smollm": 6, "qwen2": 6}
    pre_tokenizer = build_tokenizer(fields_of(trained("llama"), "llama-bpe")).backend.pre_tokenizer
    assert pre_tokenizer is not None
    assert [part for part, _ in pre_tokenizer.pre_tokenize_str("1234567")] == ["123", "456", "7"]


def test_ends_and_beginnings_follow_the_file() -> None:
    tokenizer = trained("llama")
    bos, eos, eot = (tokenizer.token_to_id(text) for text in ("<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"))
    fields = fields_of(tokenizer, "llama-bpe") | {
        "ggml.eos_token_id": eos,
        "ggml.eot_token_id": eot,
        "ggml.add_eos_token": True,
        "chat_template": "{{ bos_token }}",
    }
    stored = build_tokenizer(fields)
    assert stored.end_ids == {eos, eot}
    assert stored.special_tokens == {"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>"}
    assert stored.chat_template == "{{ bos_token }}"
    ids = Tokenizer(stored.backend).encode("a").tolist()
    assert (ids[0], ids[-1]) == (bos, eos)
    without = build_tokenizer(fields | {"ggml.add_bos_token": False, "ggml.add_eos_token": False}).backend
    assert Tokenizer(without).encode("a").tolist() == ids[1:-1]


@pytest.mark.parametrize(("change", "message"), [
    ({"ggml.pre": "gpt-9"}, "tokenizer.ggml.pre 'gpt-9' is not known; known: gpt2 with pre smollm, llama-bpe, qwen2, "),
    ({"ggml.model": "t5"}, "tokenizer.ggml.model 't5' is not known"),
    ({"ggml.tokens": None}, "tokenizer.ggml.tokens is missing"),
    ({"ggml.tokens": [1]}, "tokenizer.ggml.tokens is missing or not a list of str"),
    ({"ggml.token_type": [1]}, "tokens, but 1 types"),
    ({"ggml.merges": ["a q9"]}, "tokenizer.ggml.merges do not fit the tokens"),
    ({"ggml.merges": ["a"]}, "tokenizer.ggml.merges do not fit the tokens"),
    ({"ggml.eos_token_id": 1 << 20}, "tokenizer.ggml.eos_token_id = 1048576 is not a token id"),
    ({"chat_template": 7}, "tokenizer.chat_template is not a text"),
])  # fmt: skip
def test_what_is_wrong_is_said_by_name(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=re.escape(message)):
        build_tokenizer(fields_of(trained("qwen3"), "qwen2") | change)


@pytest.mark.full
@pytest.mark.skipif(
    importlib.util.find_spec("llama_cpp") is None, reason="needs llama-cpp-python, of the nightly tests"
)
@pytest.mark.parametrize("pre", ["smollm", "llama-bpe", "qwen2"])
def test_ids_are_those_of_llama_cpp(tmp_path: Path, pre: str) -> None:
    import llama_cpp

    ours, original = both(pre)
    file = str(tmp_path / "vocabulary.gguf")
    writer = gguf.GGUFWriter(file, "llama")
    fields = tokenizer_fields(original._backend, pre)
    writer.add_tokenizer_model(fields["model"])
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(fields["tokens"])
    writer.add_token_types(fields["token_type"])
    writer.add_token_merges(fields["merges"])
    bos = original._backend.token_to_id("<|begin_of_text|>")
    writer.add_bos_token_id(0 if bos is None else bos)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    theirs = llama_cpp.Llama(file, vocab_only=True, verbose=False)

    @given(text=texts)
    @settings(max_examples=2000)
    def compare(text: str) -> None:
        assert ours.encode(text).tolist() == theirs.tokenize(text.encode(), add_bos=bos is not None, special=True)

    compare()
