"""Text requests tokenise as the joined string does, whatever stands at the seam."""

import unicodedata

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from mis_core.tokenization import Tokenizer
from mis_core.tokenization.seam import _CUT_CHARACTERS, cut_characters, find_cut

KINDS = ["qwen", "llama3", "gpt2", "framed", "metaspace"]
SHARING = KINDS[:4]

PIECES = (
    " ", "  ", "\n", "\n\n", " \n", "\r\n", "\t", "\u00a0", "\u2003", "\x85", "word", " word", "Word", "yes", "7", "12",
    "1234", "٣", "'", "'s", "'r", "e", "'ll", "ll", ".", ",", "?!", "(", ")", ":", "\uff0c", "。", "中", "文",
    "日本", "“",
    "<|im_", "end|>", "<|im_end|>", "<|", "|>", "<|begin_of_", "text|>", "<|begin_of_text|>", "<|endof", "<thi", "nk>",
    "</think>", "<|eot_id|>", "▁", "<0x0A>", "é", "e\u0301", "\u0301", "\u0323", "\u0307", "\u0338", "<", "=", "q",
    "\u1100", "\u1161", "\u11a8", "가", "\u0c46", "\u0c56", "\u3099", "か", "🙂",
    "\u200d", "\ufeff", "\x00", "\u017f", "ß", "Ω",
)  # fmt: skip

texts = st.lists(st.one_of(st.sampled_from(PIECES), st.characters(exclude_categories=["Cs"])), max_size=8).map("".join)
openings = st.sampled_from(
    [
        "",
        "<|begin_of_text|>",
        "<|begin_of_text|>Is it so",
        "Is it so",
        "The answer, please. ",
        "<|im_start|>user\nWhich one",
        "中文\uff0c标点。",
        "See 12,",
    ]
)
queries = st.tuples(openings, texts).map("".join).filter(bool)


def ids_of(backend: Backend, text: str) -> list[int]:
    """Ids as the library gives them, but for a text that begins with BOS: it gets no second one."""
    bare = backend.encode(text, add_special_tokens=False).ids
    return bare if bare[:1] == [backend.token_to_id("<|begin_of_text|>")] else backend.encode(text).ids


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=120, deadline=None)
@given(query=queries, items=st.lists(texts, min_size=1, max_size=4))
def test_ids_are_those_of_the_joined_string(small_tokenizer, kind, query, items):
    backend = small_tokenizer(kind)
    tokenizer = Tokenizer(backend)
    joined = tokenizer.join(query, items)
    np.testing.assert_array_equal(joined.query, ids_of(backend, query))
    for index, item in enumerate(items):
        assert joined.sequence(index).tolist() == ids_of(backend, query + item)
    assert np.all(np.diff(joined.item_starts) >= 1)
    item_first = tokenizer.join(query, items, item_first=True)
    for index, item in enumerate(items):
        assert item_first.sequence(index).tolist() == ids_of(backend, item + query)
    bare = tokenizer.join(query, items, add_special_tokens=False)
    for index, item in enumerate(items):
        assert bare.sequence(index).tolist() == backend.encode(query + item, add_special_tokens=False).ids


@pytest.mark.parametrize("kind", SHARING)
@settings(max_examples=120, deadline=None)
@given(query=queries, item=texts)
def test_nothing_after_a_cut_changes_the_ids_before_it(small_tokenizer, kind, query, item):
    backend = small_tokenizer(kind)
    cut = find_cut(query, cut_characters(backend))
    if cut is not None:
        parts = [
            backend.encode(text, add_special_tokens=False).ids
            for text in (query[:cut], query[cut:] + item, query + item)
        ]
        assert parts[0] + parts[1] == parts[2]


@pytest.mark.parametrize(
    ("query", "item"),
    [("yes \n", "\n\nno"), ("say <|im_", "end|>"), ("cafe", "\u0301"), ("q\u0307", "\u0323"), ("y", "es")],
)
def test_the_seam_matters(small_tokenizer, query, item):
    """The cases above are no formality: the ids of the two halves are not those of the whole."""
    backend = small_tokenizer("qwen")
    halves = backend.encode(query).ids + backend.encode(item).ids
    assert halves != backend.encode(query + item).ids
    assert Tokenizer(backend).join(query, [item]).sequence(0).tolist() == backend.encode(query + item).ids


@pytest.mark.parametrize("kind", SHARING)
@pytest.mark.parametrize(
    "query",
    [
        "Does the document answer the query? Answer yes or no. Document:",
        "<|im_start|>user\nDoes it answer the query?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
        "中文\uff0c标点。日本語\uff0c",
    ],
)
def test_ordinary_text_is_retokenised_from_its_last_words_only(small_tokenizer, kind, query):
    backend = small_tokenizer(kind)
    cut = find_cut(query, cut_characters(backend))
    assert cut is not None
    after = backend.encode(query[cut:], add_special_tokens=False).ids
    joined = Tokenizer(backend).join(query, [" rain", "", "plains in spring"])
    assert joined.context_lens.min() >= len(joined.query) - len(after) - 1


def test_items_of_ordinary_text_see_the_whole_query(small_tokenizer):
    query = "Does the document answer the query? Document:"
    joined = Tokenizer(small_tokenizer("qwen")).join(query, [" rain", " a dog"])
    np.testing.assert_array_equal(joined.context_lens, len(joined.query))


def test_cut_characters_begin_a_new_normal_form():
    """None of them composes with what stands before it, as the argument for a cut requires."""
    decompositions = (unicodedata.decomposition(chr(code)) for code in range(0x110000))
    seconds = {chr(int(parts[1], 16)) for text in decompositions if text[:1] != "<" and len(parts := text.split()) == 2}
    assert not _CUT_CHARACTERS & seconds
    for char in _CUT_CHARACTERS:
        assert unicodedata.combining(char) == 0
        assert unicodedata.normalize("NFC", char) == char
        assert unicodedata.category(char)[0] not in "LNM"


def _qwen_like(pattern: str | None = None) -> Backend:
    pattern = pattern or (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    backend = Backend(models.BPE())
    split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    backend.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    return backend


def _with_token(token: AddedToken) -> Backend:
    backend = _qwen_like()
    backend.add_tokens([token])
    return backend


def _with_normalizer(normalizer: normalizers.Normalizer) -> Backend:
    backend = _qwen_like()
    backend.normalizer = normalizer
    return backend


def _with_pre_tokenizer(pre_tokenizer: pre_tokenizers.PreTokenizer) -> Backend:
    backend = _qwen_like()
    backend.pre_tokenizer = pre_tokenizer
    return backend


def test_known_pipelines_offer_cuts():
    assert cut_characters(_qwen_like()) == _CUT_CHARACTERS
    assert cut_characters(_with_normalizer(normalizers.Sequence([normalizers.NFC()]))) == _CUT_CHARACTERS


@pytest.mark.parametrize(
    "backend",
    [
        pytest.param(_qwen_like(r"\S+|\s+"), id="unknown pattern"),
        pytest.param(_with_token(AddedToken("<mask>", lstrip=True)), id="token that strips left"),
        pytest.param(_with_token(AddedToken("<mask>", rstrip=True)), id="token that strips right"),
        pytest.param(_with_token(AddedToken("mask", single_word=True)), id="token that is a word"),
        pytest.param(_with_normalizer(normalizers.NFKC()), id="other normaliser"),
        pytest.param(_with_pre_tokenizer(pre_tokenizers.ByteLevel(add_prefix_space=True)), id="space put before"),
        pytest.param(_with_pre_tokenizer(pre_tokenizers.Metaspace()), id="metaspace"),
        pytest.param(Backend(models.BPE()), id="no pre-tokens"),
    ],
)
def test_other_pipelines_offer_none(backend):
    assert cut_characters(backend) == frozenset()


def test_characters_inside_added_tokens_are_no_cuts():
    backend = _with_token(AddedToken("end of it.", normalized=False))
    assert cut_characters(backend) == _CUT_CHARACTERS - {" ", "."}


@pytest.mark.parametrize(
    ("text", "cut"),
    [("two words", 3), ("two words ", 9), ("two words  ", 9), ("word.", 4), ("7 ", 1), ("word", None), (" a", None),
     ("a' b", None), ("中文\uff0c标", 2), ("é x", 1), ("e\u0301 x", None), ("\n\n", None), ("", None)],
)  # fmt: skip
def test_cuts_follow_letters_and_digits(text, cut):
    assert find_cut(text, _CUT_CHARACTERS) == cut
