"""Tokenizers that multiply texts are refused before they do; those that are published are not."""

import base64
import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mis_core.checkpoints.growth import MOST, MOST_ADDED, check_growth
from mis_core.checkpoints.tokenizer_files import check_made
from mis_core.errors import ModelError
from mis_core.tokenization import Tokenizer

Part = dict[str, Any]
PATH = Path("tokenizer.json")


def replace(pattern: str, content: str, kind: str = "String") -> Part:
    return {"type": "Replace", "pattern": {kind: pattern}, "content": content}


def byte_level(**fields: Any) -> Part:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False} | fields


def sequence(*parts: Part, kind: str = "normalizers") -> Part:
    return {"type": "Sequence", kind: list(parts)}


def growth_of(normalizer: Any, pre_tokenizer: Any = None) -> int:
    """The factor, as the refusal of one above a limit of none names it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mis_core.checkpoints.growth.MOST", 0)
        with pytest.raises(ModelError) as caught:
            check_growth(PATH, {"normalizer": normalizer, "pre_tokenizer": pre_tokenizer})
    (number,) = re.findall(r"may turn one character into ([\d,]+) characters", str(caught.value))
    return int(number.replace(",", ""))


HOSTILE: dict[str, tuple[Part | None, Part | None]] = {
    "ten of one, seven times": (sequence(*[replace("a", "a" * 10)] * 7), None),
    "ten of one, three hundred times": (sequence(*[replace("a", "a" * 10)] * 300), None),
    "a long replacement": (replace("a", "b" * 10_000_000), None),
    "of what a pattern matches": (sequence(*[replace("a+", "aa", "Regex")] * 9), None),
    "of nothing": (sequence(*[replace("a*", "b" * 9, "Regex")] * 3), None),
    "of an empty text": (replace("", "b" * 90), None),
    "a long beginning": ({"type": "Prepend", "prepend": "b" * 1000}, None),
    "bytes of bytes": (None, sequence(*[byte_level()] * 50, kind="pretokenizers")),
    "nested": (sequence(sequence(replace("a", "b" * 60)), sequence(sequence(replace("b", "cc")))), None),
}


@pytest.mark.parametrize(("normalizer", "pre_tokenizer"), HOSTILE.values(), ids=HOSTILE)
def test_what_multiplies_texts_is_refused(normalizer: Part | None, pre_tokenizer: Part | None) -> None:
    with pytest.raises(ModelError, match=f"characters; at most {MOST} are allowed.*--tokenizer-path") as caught:
        check_growth(PATH, {"normalizer": normalizer, "pre_tokenizer": pre_tokenizer})
    assert len(str(caught.value)) < 300


def test_a_checkpoint_is_refused_before_its_tokenizer_is_made(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(checkpoint, tmp_path / "model")
    path = tmp_path / "model" / "tokenizer.json"
    content = json.loads(path.read_text())
    assert Tokenizer.from_pretrained(tmp_path / "model").encode("a").tolist()
    monkeypatch.setattr("mis_core.checkpoints.tokenizer_files._load", None)
    path.write_text(json.dumps(content | {"normalizer": HOSTILE["ten of one, seven times"][0]}))
    with pytest.raises(ModelError, match=r"tokenizer\.json: its normalizers .* 40,000,000 characters"):
        Tokenizer.from_pretrained(tmp_path / "model")
    token = content["added_tokens"][0]
    path.write_text(json.dumps(content | {"added_tokens": [token] * (MOST_ADDED + 1)}))
    with pytest.raises(ModelError, match=r"tokenizer\.json: 262,145 added tokens; at most 262,144 are allowed"):
        Tokenizer.from_pretrained(tmp_path / "model")


@pytest.mark.parametrize(
    ("tokenizer", "reason"),
    [
        (
            {"decoder": sequence(*[replace("a", "a" * 200)] * 3, kind="decoders")},
            "its decoders may turn one character into 8,000,000",
        ),
        (
            {"decoder": sequence(replace("(a*)*c", "b", "Regex"), kind="decoders")},
            "a decoder replaces matches of a regular",
        ),
        (
            {
                "normalizer": replace("a*a*[bc]", "b", "Regex"),
                "added_tokens": [{"content": "a" * 65, "normalized": True}],
            },
            "normalizes 1 added tokens of up to 65 characters",
        ),
        (
            {"normalizer": replace("a", "b", "Regex"), "added_tokens": [{"content": "a", "normalized": True}] * 5000},
            "normalizes 5,000 added tokens",
        ),
    ],
    ids=["decoder", "expression of a decoder", "long added token", "many added tokens"],
)
def test_what_would_hold_up_the_process_that_loads_it_is_refused(tokenizer: dict[str, Any], reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        check_growth(PATH, tokenizer)


SPLIT = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
BERT = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None} | {
    "lowercase": True
}
PUBLISHED: dict[str, tuple[Part | None, Part | None]] = {
    "gpt2": (None, byte_level()),
    "llama2": (sequence({"type": "Prepend", "prepend": "▁"}, replace(" ", "▁")), None),
    "gemma": (replace(" ", "▁"), SPLIT),
    "bert": (
        BERT,
        {"type": "BertPreTokenizer"},
    ),
    "albert": (
        sequence(replace("``", '"'), *({"type": kind} for kind in ("NFKD", "StripAccents", "Lowercase"))),
        {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
    ),
    "clip": (sequence({"type": "NFC"}, replace("\\s+", " ", "Regex"), {"type": "Lowercase"}), byte_level()),
    "t5": (
        sequence({"type": "Strip", "strip_left": False, "strip_right": True}, replace(" {2,}", "▁", "Regex")),
        {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("normalizer", "pre_tokenizer"), PUBLISHED.values(), ids=PUBLISHED)
def test_what_is_published_is_not(normalizer: Part | None, pre_tokenizer: Part | None) -> None:
    check_growth(PATH, {"normalizer": normalizer, "pre_tokenizer": pre_tokenizer})


@pytest.mark.parametrize(("longest", "refused"), [(18, False), (18 * MOST, False), (18 * MOST + 1, True)])
def test_a_map_of_characters_counts_by_its_longest_text(longest: int, refused: bool) -> None:
    trie = (4).to_bytes(4, "little") + bytes(4)
    data = base64.b64encode(trie + b"b\0" + "é".encode() * longest + b"\0").decode()
    growth = growth_of({"type": "Precompiled", "precompiled_charsmap": data})
    assert (growth > MOST) == refused


@pytest.mark.parametrize("broken", [7, "a", [[[]]], {"type": 7}, replace("a", "b") | {"pattern": 7}, {"content": "a"}])
def test_what_is_of_a_wrong_type_is_left_to_the_library(broken: Any) -> None:
    check_growth(PATH, {"normalizer": broken, "pre_tokenizer": broken, "added_tokens": broken})


parts = st.one_of(
    st.builds(replace, st.sampled_from(["a", "b", "ab", "bb"]), st.sampled_from(["", "a", "ab", "bbb", "é b"])),
    st.builds(
        replace,
        st.sampled_from(["a", "a+", "a*", "[ab]", "(?=a)", "b?", "^", "é|b"]),
        st.sampled_from(["", "a", "ba", "ébb"]),
        st.just("Regex"),
    ),
    st.builds(lambda text: {"type": "Prepend", "prepend": text}, st.sampled_from(["a", "▁b"])),
    st.sampled_from([{"type": "NFC"}, {"type": "Lowercase"}, byte_level()]),
)


@settings(max_examples=150, deadline=None)
@given(normalizers=st.lists(parts, max_size=4), text=st.text("abé", min_size=1, max_size=8))
def test_no_text_grows_by_more_than_its_factor(normalizers: list[Part], text: str) -> None:
    state = sequence(*normalizers)
    tokenizer = json.loads(tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0}, [])).to_str())
    normalizer = tokenizers.Tokenizer.from_str(json.dumps(tokenizer | {"normalizer": state})).normalizer
    assert normalizer is not None
    try:
        grown = normalizer.normalize_str(text)
    except BaseException as error:  # the library panics where an empty match is replaced, for instance
        assume(type(error).__name__ != "PanicException")
        raise
    assert len(grown) <= growth_of(state) * (len(text) + 1)


def test_a_factor_of_many_digits_is_no_number_for_people() -> None:
    many = sequence(*[replace("a", "a" * 10)] * (2 * sys.get_int_max_str_digits()))
    with pytest.raises(ModelError, match="more than a billion"):
        check_growth(PATH, {"normalizer": many})


def test_a_tokenizer_made_of_another_file_is_checked_too() -> None:
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    check_made(Path("tokenizer.model"), backend)
    backend.normalizer = tokenizers.normalizers.Replace("a", "a" * (MOST + 1))
    with pytest.raises(ModelError, match=r"tokenizer\.model: .* 65 characters"):
        check_made(Path("tokenizer.model"), backend)
