"""Cuts hold for tokenizers that nobody has published: random stages, tokens and texts."""

import contextlib
from collections.abc import Iterator

import hypothesis
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers, trainers

from mis_core.tokenization.patterns import Pattern
from mis_core.tokenization.seam import Seam

PIECES = (
    "a", "b", "c", "A", "1", "2", "23", " ", "  ", "\n", "\n\n", " \n", "\t", ".", ",", "!?", "'s", "'S", "▁", "▁▁",
    "é", "e\u0301", "\u0301", "文", "\uff0c", "가", "\u11a8", "\u1161", "\u017f", "ß", "²", "Ġ", "-", "_", "ss", "ab",
    "a b", "a.", "<x>", "<y", "<m>", "M", "word", " word", "b\n", '"', "(", "\u00a0", "🙂", "\x00", "\u0600", "ｱ", "İ",
    "a,",
)  # fmt: skip
texts = st.lists(st.sampled_from(PIECES), min_size=1, max_size=12).map("".join)

ATOMS = (
    "a", "b", r"\.", ",", "'", " ", r"\s", r"\S", r"\w", r"\d", r"\p{L}", r"\p{N}", r"\p{Lu}", "[^a]", "[ab]",
    r"[^\s\p{L}]", ".", r"[\r\n]", "文", "\u017f", "▁", "[.,]", "(?! )", r"(?!\S)", "(?=a)", "$",
)  # fmt: skip
QUANTIFIERS = ("", "", "", "+", "?", "*", "{1,2}", "??", "+?", "++", "{2}", "{2}?", "{,2}")


def _alternatives(parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    repeated = st.tuples(parts, st.sampled_from(QUANTIFIERS)).map("".join)
    looks = st.sampled_from([atom for atom in ATOMS if atom.startswith("(?") or atom == "$"])
    sequence = st.lists(st.one_of(repeated, repeated, repeated, looks), min_size=1, max_size=3).map("".join)
    return st.lists(sequence, min_size=1, max_size=3).map("|".join)


atoms = st.sampled_from([atom for atom in ATOMS if not atom.startswith("(?") and atom != "$"])
groups = st.tuples(st.sampled_from(["(?:", "(", "(?i:"]), _alternatives(atoms)).map(lambda parts: "".join(parts) + ")")


def _is_valid(source: str) -> bool:
    try:
        Regex(source)
    except Exception:  # the library has no other type for it
        return False
    return True


sources = _alternatives(st.one_of(atoms, atoms, groups)).filter(_is_valid)

behaviors = st.sampled_from(
    ["removed", "isolated", "isolated", "merged_with_previous", "merged_with_next", "contiguous"]
)
flags = st.booleans()
NORMALIZERS = st.one_of(
    st.sampled_from(["NFC", "NFKC", "NFD", "NFKD", "Lowercase", "StripAccents", "Nmt", "ByteLevel"]).map(
        lambda name: getattr(normalizers, name)()
    ),
    st.just(normalizers.Replace(" ", "▁")),
    st.just(normalizers.Prepend("▁")),
    st.builds(normalizers.Strip, flags, flags),
    st.builds(normalizers.BertNormalizer, flags, flags, flags, flags),
    st.builds(
        normalizers.Replace,
        st.sampled_from(["a", ".", "  ", "\n", "▁▁", ",,"]),
        st.sampled_from(["", "▁", "xy", "\u0301"]),
    ),
    st.builds(normalizers.Replace, sources.map(Regex), st.sampled_from(["", "▁", " "])),
)
PRE_TOKENIZERS = st.one_of(
    st.builds(pre_tokenizers.Split, sources.map(Regex), behaviors, flags),
    st.builds(pre_tokenizers.Split, st.sampled_from([" ", "a", "▁", "  "]), behaviors),
    st.builds(lambda prefix, regex: pre_tokenizers.ByteLevel(prefix, use_regex=regex), flags, flags),
    st.builds(pre_tokenizers.Digits, flags),
    st.builds(
        lambda scheme, split: pre_tokenizers.Metaspace(prepend_scheme=scheme, split=split),
        st.sampled_from(["first", "always", "never"]),
        flags,
    ),
    st.builds(pre_tokenizers.Punctuation, behaviors),
    st.sampled_from(["Whitespace", "WhitespaceSplit", "BertPreTokenizer", "UnicodeScripts"]).map(
        lambda name: getattr(pre_tokenizers, name)()
    ),
    st.sampled_from(" .▁").map(pre_tokenizers.CharDelimiterSplit),
)
ADDED = st.builds(
    AddedToken,
    st.sampled_from(["<x>", "<y y>", "<m>", "ab", "a b", " ", "\n\n", ". ", "word", "M", "12", "ss", "<é>"]),
    normalized=flags,
    lstrip=flags,
    rstrip=flags,
    single_word=flags,
)
MODELS = ("bpe", "bpe", "bpe", "unigram", "wordpiece")


@st.composite
def backends(draw: st.DrawFn) -> tokenizers.Tokenizer:
    """Train a tokenizer of random stages on a few random lines, now and then with fewer pre-tokenisers than it uses."""
    kind = draw(st.sampled_from(MODELS))
    special = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256 if draw(flags) else 0))]
    sizes = {"vocab_size": len(special) + draw(st.sampled_from([60, 120])), "special_tokens": special}
    if kind == "bpe":
        options = {name: draw(flags) for name in ("byte_fallback", "fuse_unk", "ignore_merges")}
        backend = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", **options))
        trainer = trainers.BpeTrainer(show_progress=False, limit_alphabet=draw(st.sampled_from([8, 50])), **sizes)
    elif kind == "unigram":
        backend = tokenizers.Tokenizer(models.Unigram())
        trainer = trainers.UnigramTrainer(show_progress=False, unk_token="<unk>", **sizes)
    else:
        backend = tokenizers.Tokenizer(models.WordPiece(unk_token="<unk>", max_input_chars_per_word=5))
        trainer = trainers.WordPieceTrainer(show_progress=False, **sizes)
    if normal := draw(st.lists(NORMALIZERS, max_size=2)):
        backend.normalizer = normalizers.Sequence(normal)
    splits = draw(st.lists(PRE_TOKENIZERS, max_size=2))
    backend.pre_tokenizer = pre_tokenizers.Sequence(splits[: draw(st.integers(0, 2))])
    backend.train_from_iterator(draw(st.lists(texts, min_size=10, max_size=20)), trainer)
    backend.pre_tokenizer = pre_tokenizers.Sequence(splits)
    backend.add_tokens(draw(st.lists(ADDED, max_size=2)))
    return backend


@contextlib.contextmanager
def rejecting_panics() -> Iterator[None]:
    """Leave out what the library itself cannot do; a panic of its is no `Exception`."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException" and "vocabulary is not large enough" not in str(error):
            raise
        hypothesis.reject()


@settings(max_examples=200, deadline=None, suppress_health_check=list(hypothesis.HealthCheck))
@given(data=st.data())
def test_ids_after_a_cut_depend_on_one_character_before_it(data):
    with rejecting_panics():
        backend = data.draw(backends())
    seam = Seam(backend)
    for text in data.draw(st.lists(texts, min_size=8, max_size=8)):
        for cut in range(1, len(text)):
            if seam.cut(text[: cut + 1]) == cut:
                with rejecting_panics():
                    whole, before, left, behind = (
                        backend.encode(part, add_special_tokens=False).ids
                        for part in (text, text[:cut], text[cut - 1], text[cut - 1 :])
                    )
                assert behind[: len(left)] == left
                assert before + behind[len(left) :] == whole


@settings(max_examples=300, deadline=None)
@given(source=sources, before=texts, behind=texts)
def test_matches_end_where_a_pattern_parts(source, before, behind):
    try:
        pattern = Pattern(source)
    except ValueError:
        hypothesis.reject()
    split = pre_tokenizers.Split(Regex(source), behavior="isolated")
    for left, right in ("a ", "b.", "2 ", "A,", "文\n", "ß."):
        if pattern.parts(left, right):
            text = before + left + right + behind
            place = len(before) + 1
            parts = split.pre_tokenize_str(text)
            assert place in [begin for _, (begin, _) in parts]
            assert [part for part in parts if part[1][1] <= place] == split.pre_tokenize_str(text[:place])
            alone = [
                (part, (begin + place, end + place)) for part, (begin, end) in split.pre_tokenize_str(text[place:])
            ]
            assert [part for part in parts if part[1][0] >= place] == alone


@pytest.mark.parametrize(
    ("source", "parts", "ignores"),
    [
        (r"\p{L}+|\s+", True, False),
        (r"\p{L}+|\s+(?!\S)|\s+", True, False),
        (r"\p{L}+ ?", False, False),
        (r"\p{L}+(?! )", False, False),
        (r"\p{N}{1,3}", False, True),
        (r" {2,}", False, False),
        (r"[^(\s|[.,!])]+", True, False),
        (r"\s+(?!\S)", False, False),
        (r"\s+$|a+", True, False),
        (r"(?i:s\S?)+", False, False),
        (r"ax{2}? |a|\s", False, False),  # means (?:x{2})? there
    ],
)
def test_a_pattern_is_read(source, parts, ignores):
    assert Pattern(source).parts("a", " ") == parts
    assert Pattern(source).ignores("a", " ") == ignores


@pytest.mark.parametrize(
    "source",
    [r"a*", r"(?<=a)b", r"\ba", r"^a", r"(a)\1", r"a|", r"(?>a)", r"(?i)a", r"[]a]", r"[a", r"(a", r"a)", r"a{2",
     r"\Ra", r"(?=ab)a", r"\G."],
)  # fmt: skip
def test_other_patterns_are_not_read(source):
    with pytest.raises(ValueError, match=r"."):
        Pattern(source)


def test_a_literal_is_read_as_it_is():
    assert Pattern("a.", literal=True).ignores("b", "x")
    assert not Pattern("a.", literal=True).parts("a", ".")
