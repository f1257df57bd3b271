"""Text requests tokenise as the joined string does, whatever stands at the seam."""

import unicodedata

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from mis_core.tokenization import Tokenizer
from mis_core.tokenization.seam import _CUT_CHARACTERS, Seam

pytestmark = pytest.mark.quick

SHARING = [
    "qwen", "llama3", "framed", "gpt2", "smollm", "o200k", "deepseek", "prefixed", "llama2", "mistral", "gemma",
    "gemma-gguf", "llama2-gguf", "unigram", "bert",
]  # fmt: skip
KINDS = [*SHARING, "unknown"]

PIECES = (
    " ", "  ", "\n", "\n\n", " \n", "\r\n", "\t", "\u00a0", "\u2003", "\x85", "word", " word", "Word", "yes", "7", "12",
    "1234", "٣", "'", "'s", "'r", "e", "'ll", "ll", ".", ",", "?!", "(", ")", ":", "\uff0c", "。", "中", "文",
    "日本", "“",
    "<|im_", "end|>", "<|im_end|>", "<|", "|>", "<|begin_of_", "text|>", "<|begin_of_text|>", "<|endof", "<thi", "nk>",
    "</think>", "<|eot_id|>", "▁", "▁▁", "a▁b", "   ", "<0x0A>", "[INST]", "▁[INST]", "[IN", "<mask>",
    " <mask>", "<\uff5cUser\uff5c>", "Ġ", "²", "camelCase", "HTML/", "\u017fs", "é", "e\u0301", "\u0301", "\u0323",
    "\u0307", "\u0338", "<", "=", "q",
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
        "  say  it \n<mask>",
        "[INST] Is it so",
    ]
)
queries = st.tuples(openings, texts).map("".join).filter(bool)


def ids_of(backend: Backend, text: str) -> list[int]:
    """Ids as the library gives them, but for a text that begins with BOS: it gets no second one."""
    bare = backend.encode(text, add_special_tokens=False).ids
    return bare if bare[:1] == [backend.token_to_id("<|begin_of_text|>")] else backend.encode(text).ids


@pytest.mark.parametrize("kind", KINDS)
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
    whole = [backend.encode(query + item, add_special_tokens=False).ids for item in items]
    assume(all(whole))  # text may have no tokens of its own
    bare = tokenizer.join(query, items, add_special_tokens=False)
    for index, ids in enumerate(whole):
        assert bare.sequence(index).tolist() == ids


@pytest.mark.parametrize("kind", SHARING)
@given(query=queries, item=texts)
def test_nothing_after_a_cut_changes_the_ids_before_it(small_tokenizer, kind, query, item):
    backend = small_tokenizer(kind)
    cut = Seam(backend).cut(query)
    if cut is not None:
        assert_cut(backend, query + item, cut)


def assert_cut(backend: Backend, text: str, cut: int) -> None:
    """The ids are those before the cut, and those behind it as they are behind the one character `left`."""
    whole, before, left, behind = (
        backend.encode(part, add_special_tokens=False).ids
        for part in (text, text[:cut], text[cut - 1 : cut], text[cut - 1 :])
    )
    assert behind[: len(left)] == left
    assert before + behind[len(left) :] == whole


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
    after = backend.encode(query[Seam(backend).cut(query) :], add_special_tokens=False).ids
    joined = Tokenizer(backend).join(query, [" rain", "", "plains in spring"])
    assert joined.context_lens.min() >= len(joined.query) - len(after) - 1


def test_items_of_ordinary_text_see_the_whole_query(small_tokenizer):
    query = "Does the document answer the query? Document:"
    joined = Tokenizer(small_tokenizer("qwen")).join(query, [" rain", " a dog"])
    np.testing.assert_array_equal(joined.context_lens, len(joined.query))


def test_cut_characters_begin_a_new_normal_form():
    """None of them composes with what stands before it, as the argument for a cut requires."""
    decompositions = (unicodedata.decomposition(chr(code)) for code in range(0x110000))
    pairs = [text.split() for text in decompositions if text[:1] != "<" and " " in text]
    assert not _CUT_CHARACTERS & {chr(int(char, 16)) for pair in pairs for char in pair}
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


def _allowed(backend: Backend, left: str = "d") -> frozenset[str]:
    seam = Seam(backend)
    return frozenset(char for char in _CUT_CHARACTERS if seam.cut(left + char) == 1)


def test_known_pipelines_offer_cuts():
    assert _allowed(_qwen_like()) == _CUT_CHARACTERS
    assert _allowed(_with_normalizer(normalizers.Sequence([normalizers.NFC()]))) == _CUT_CHARACTERS
    assert _allowed(_with_normalizer(normalizers.NFKC())) == set(' \t\n\r,.;:!?()"。、「」“”')
    assert _allowed(_with_pre_tokenizer(pre_tokenizers.Metaspace())) == {" "}
    assert _allowed(_with_token(AddedToken("<mask>", lstrip=True, rstrip=True))) == _CUT_CHARACTERS
    assert _allowed(_with_token(AddedToken("mask", single_word=True))) == _CUT_CHARACTERS


def test_bytes_that_are_letters_are_not_followed_further():
    """A space is "Ġ" among them, which has an accent and a small letter."""
    bytes_first = [normalizers.ByteLevel(), normalizers.BertNormalizer()]
    assert _allowed(_with_normalizer(normalizers.Sequence(bytes_first))) == set(',.;:!?()"')


def test_a_vocabulary_says_where_merges_may_reach():
    """Without pre-tokens a cut is where no token holds both characters, which the vocabulary has."""
    backend = Backend(models.BPE({"d": 0, " ": 1, ".": 2, "a": 3, "d.": 4, "a d": 5}, [("d", ".")]))
    assert _allowed(backend) == {" "}
    assert _allowed(backend, "a") == {"."}
    assert _allowed(backend, "x") == set()


@pytest.mark.parametrize(
    "backend",
    [
        pytest.param(_qwen_like(r"(?<=x)\S+|\s+"), id="looks behind"),
        pytest.param(_qwen_like(r"\p{L}+\P{L}?|\S|\s+"), id="a match may hold both"),
        pytest.param(_qwen_like(r"\p{L}+(?!x)|\S|\s+"), id="looks ahead behind a letter"),
        pytest.param(_with_token(AddedToken("<mad", normalized=False)), id="token that ends in the letter"),
        pytest.param(_with_normalizer(normalizers.Replace(Regex(r"\w\W"), "x")), id="replaced together"),
        pytest.param(_with_pre_tokenizer(pre_tokenizers.FixedLength(3)), id="by the length before"),
        pytest.param(Backend(models.BPE()), id="no vocabulary"),
        pytest.param(Backend(models.Unigram([("a", 0.0), (" ", 0.0), ("d", 0.0)], 0, False)), id="sums that round"),
    ],
)
def test_other_pipelines_offer_none(backend):
    assert _allowed(backend) == frozenset()


def test_neighbours_inside_added_tokens_are_no_cuts():
    backend = _with_token(AddedToken("end of it.", normalized=False))
    assert _allowed(backend) == _CUT_CHARACTERS - {" "}
    assert _allowed(backend, "t") == _CUT_CHARACTERS - {"."}


def test_added_tokens_of_white_space_keep_the_cut_before_them():
    backend = _qwen_like()
    backend.add_tokens([AddedToken(char * times, normalized=False) for char in " \n\t" for times in (2, 3)])
    assert _allowed(backend) == _CUT_CHARACTERS


def test_added_tokens_are_looked_for_in_normalised_text_too():
    backend = _with_normalizer(normalizers.Lowercase())
    backend.add_tokens([AddedToken("X. D", normalized=True)])
    assert _allowed(backend, "D") == frozenset()
    assert _allowed(backend, "X") == _CUT_CHARACTERS - {"."}


def test_whole_words_taken_without_merges_are_no_cuts():
    """With `ignore_merges` the part before a cut may be a token that its merges do not make."""
    vocabulary = {"d": 0, " ": 1, "dd": 2}
    backend = Backend(models.BPE(vocabulary, [], ignore_merges=True))
    assert backend.encode("dd").ids == [2]
    assert backend.encode("dd ").ids == [0, 0, 1]
    assert _allowed(backend) == frozenset()
    assert _allowed(Backend(models.BPE(vocabulary, []))) == {" "}


@pytest.mark.parametrize(
    ("text", "cut"),
    [("two words", 3), ("two words ", 9), ("two words  ", 9), ("word.", 4), ("7 ", 1), ("word", None), (" a", None),
     ("a' b", None), ("中文\uff0c标", 2), ("é x", 1), ("e\u0301 x", None), ("\n\n", None), ("", None),
     ("\u1100\u1161 x", None)],
)  # fmt: skip
def test_cuts_follow_letters_and_digits(text, cut):
    assert Seam(_qwen_like()).cut(text) == cut
