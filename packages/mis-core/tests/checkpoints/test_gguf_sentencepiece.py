"""SentencePiece tokenizers of GGUF files: the ids that llama.cpp makes of the same pieces and scores."""

import functools
import importlib.util
import re
from pathlib import Path
from typing import Any

import gguf
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pieces import CONTROL, NORMAL, RUNS, SPECIAL, fields_of, llama_cpp_ids

from mis_core.checkpoints.gguf_tokenizer import build_tokenizer
from mis_core.errors import ModelError
from mis_core.tokenization import Tokenizer
from mis_testing.corpus import corpus

_PIECES = [
    "a",
    "aaaaaaa",
    " the",
    "document",
    "Answer yes or no",
    "won't",
    "é",
    "e\u0301",
    "日本語",
    "☃",
    "🙂",
    "👩‍🚀",
    "\x00",
    "12345",
    " 7",
    "½",
    "\r\n",
    "\u3000",
    "▁",
    "▁▁",
    "<0x0A>",
    "<|im_",
    "<b>",
    "</b",
    "\n",
    " ",
    *RUNS,
    *SPECIAL,
]
texts = st.lists(st.one_of(st.sampled_from(_PIECES), st.text(max_size=3)), max_size=12).map("".join)


@functools.cache
def fields(has_space_prefix: bool) -> dict[str, Any]:
    return fields_of(corpus(), has_space_prefix=has_space_prefix)


@functools.cache
def tokenizer(has_space_prefix: bool) -> Tokenizer:
    return Tokenizer(build_tokenizer(fields(has_space_prefix)).backend)


@pytest.mark.parametrize("has_space_prefix", [False, True])
@given(text=texts)
def test_ids_are_those_of_llama_cpps_algorithm(has_space_prefix: bool, text: str) -> None:
    ids = tokenizer(has_space_prefix).encode(text, add_special_tokens=False).tolist()
    assert ids == llama_cpp_ids(fields(has_space_prefix), text)


@given(text=texts)
def test_a_text_is_decoded_from_its_ids(text: str) -> None:
    ids = tokenizer(False).encode(text, add_special_tokens=False)
    assert tokenizer(False).decode(ids) == text.replace("▁", " ")
    assert b"".join(map(tokenizer(False).token_bytes, ids.tolist())).decode() == text.replace("▁", " ")


def test_the_space_before_a_text_is_not_decoded() -> None:
    ids = tokenizer(True).encode("the document", add_special_tokens=False)
    assert tokenizer(True).token_bytes(int(ids[0]))[:1] == b" "
    assert tokenizer(True).decode(ids) == "the document"


@functools.cache
def handmade(**scores: int) -> dict[str, Any]:
    """Return the fields of a vocabulary of a few pieces."""
    own = fields(False)
    tokens = [*own["ggml.tokens"][:3], *(f"<0x{byte:02X}>" for byte in range(256)), *scores]
    return own | {
        "ggml.tokens": tokens,
        "ggml.scores": [float(scores.get(token, 0)) for token in tokens],
        "ggml.token_type": [*SPECIAL.values(), *[6] * 256, *[NORMAL] * len(scores)],
    }


def test_the_highest_score_joins_first_and_ties_go_left() -> None:
    made = handmade(a=-9, b=-8, c=-7, ab=-2, bc=-1, aa=-3, aaa=-4)
    backend = build_tokenizer(made).backend
    for text, expected in {"abc": ["a", "bc"], "aaaaa": ["aa", "aaa"], "ababc": ["ab", "a", "bc"]}.items():
        assert backend.encode(text, add_special_tokens=False).tokens == expected
        assert backend.encode(text, add_special_tokens=False).ids == llama_cpp_ids(made, text)


def test_special_tokens_and_prefix_follow_the_file_or_llama_cpp() -> None:
    silent = {name: value for name, value in fields(False).items() if "token_id" not in name and "prefix" not in name}
    stored = build_tokenizer(silent)
    assert stored.special_tokens == {
        "unk_token": "<unk>",
        "bos_token": "<|begin_of_text|>",
        "eos_token": "<|im_end|>",
    }
    assert stored.end_ids == {2}
    assert Tokenizer(stored.backend).encode("the").tolist() == [1, *llama_cpp_ids(fields(True), "the")]
    said = silent | {"ggml.add_bos_token": False, "ggml.add_eos_token": True, "ggml.add_space_prefix": False}
    ids = Tokenizer(build_tokenizer(said).backend).encode("the").tolist()
    assert ids == [*llama_cpp_ids(fields(False), "the"), 2]


def test_the_end_of_a_turn_of_gemma_ends_an_answer() -> None:
    made = handmade(**{"<end_of_turn>": -1})
    turn = len(made["ggml.tokens"]) - 1
    made["ggml.token_type"][turn] = CONTROL
    assert build_tokenizer(made).end_ids == {2, turn}
    assert build_tokenizer(made | {"ggml.eot_token_id": 1}).end_ids == {2, 1}


@pytest.mark.parametrize(("change", "message"), [
    ({"ggml.scores": None}, "tokenizer.ggml.scores is missing or not a list of float"),
    ({"ggml.scores": [0.5]}, "tokens, but 1 scores"),
    ({"ggml.unknown_token_id": -1}, "tokenizer.ggml.unknown_token_id = -1 is not a token id"),
])  # fmt: skip
def test_broken_fields_are_refused_by_name(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=re.escape(message)):
        build_tokenizer(fields(False) | change)


@pytest.mark.parametrize(("made", "message"), [
    (handmade(a=-1, b=-2, ab=-3, ba=-3), "tokenizer.ggml.scores: 'ab' and 'ba' have the same score, so it is"),
    (handmade(a=-1, ab=-3), "tokenizer.ggml.tokens has 'ab', one of whose characters is not a piece"),
    (handmade(a=-1) | {"ggml.tokens": ["a"] * 260}, "tokenizer.ggml.tokens has 'a' twice"),
    (handmade(a=-1) | {"ggml.tokens": [str(number) for number in range(260)]}, "tokens has no piece <0x00>"),
    (handmade(a=float("nan")), "tokenizer.ggml.scores has NaN or infinity"),
    (handmade(a=-1, **{"a" * 257: -2}), "pieces of up to 257 characters"),
])  # fmt: skip
def test_what_is_no_such_vocabulary_is_refused_by_name(made: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=re.escape(message)):
        build_tokenizer(made)


def test_equal_scores_of_pieces_never_joined_are_harmless() -> None:
    build_tokenizer(handmade(a=-1, b=-1, ab=-1))


def test_pieces_for_padding_need_no_pieces_for_their_characters() -> None:
    build_tokenizer(handmade(a=-1, **{"[PAD1]": -2, "[PAD2]": -2}))


@pytest.mark.full
@pytest.mark.skipif(
    importlib.util.find_spec("llama_cpp") is None, reason="needs llama-cpp-python, of the nightly tests"
)
@pytest.mark.parametrize("has_space_prefix", [False, True])
def test_ids_are_those_of_llama_cpp(tmp_path: Path, has_space_prefix: bool) -> None:
    import llama_cpp

    file, own = str(tmp_path / "vocabulary.gguf"), fields(has_space_prefix)
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_tokenizer_model(own["ggml.model"])
    writer.add_tokenizer_pre(own["ggml.pre"])
    writer.add_token_list(own["ggml.tokens"])
    writer.add_token_scores(own["ggml.scores"])
    writer.add_token_types(own["ggml.token_type"])
    writer.add_bos_token_id(own["ggml.bos_token_id"])
    writer.add_add_space_prefix(has_space_prefix)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    theirs = llama_cpp.Llama(file, vocab_only=True, verbose=False)

    @given(text=texts)
    @settings(max_examples=2000)
    def compare(text: str) -> None:
        ids = tokenizer(has_space_prefix).encode(text, add_special_tokens=False).tolist()
        assert ids == theirs.tokenize(text.encode(), add_bos=False, special=True)
        assert ids == llama_cpp_ids(own, text)

    compare()
    whole = tokenizer(has_space_prefix).encode("the document").tolist()
    assert whole == theirs.tokenize(b"the document", add_bos=True, special=True)
    theirs.close()
