"""SentencePiece's character maps: those that work are read, broken ones refused before a text meets them."""

import base64
import json
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from mis_core.checkpoints.charsmap import check_charsmaps
from mis_core.errors import ModelError

_LEAF, _VALUE = 1 << 8, 1 << 31


def units_for(texts: dict[str, int]) -> np.ndarray:
    """Return a double-array trie that leads from characters to numbers; one block of 256 units for each byte."""
    units, blocks = np.zeros(256 * 64, np.uint32), iter(range(1, 64))
    bases = {b"": 256 * next(blocks)}
    units[0] = bases[b""] << 10
    for text, number in texts.items():
        content = text.encode()
        for length in range(1, len(content) + 1):
            before, byte = content[: length - 1], content[length - 1]
            place = bases[before] ^ byte
            base = bases.setdefault(content[:length], 256 * next(blocks))
            units[place] = (place ^ base) << 10 | byte | (_LEAF if length == len(content) else 0)
        units[bases[content]] = _VALUE | number
    return units


UNITS = units_for({"\uff41": 0, "é": 2})
TEXTS = b"a\0e\0"


def packed(units: np.ndarray, texts: bytes = TEXTS, size: int | None = None) -> str:
    table = units.astype("<u4").tobytes()
    return base64.b64encode(struct.pack("<I", len(table) if size is None else size) + table + texts).decode()


def normalizer(charsmap: object) -> dict[str, object]:
    return {"type": "Sequence", "normalizers": [{"type": "Precompiled", "precompiled_charsmap": charsmap}]}


def normalized(charsmap: str, text: str) -> str:
    """Return a text as the library turns it by a map."""
    model = {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}
    content = {"version": "1.0", "added_tokens": [], "normalizer": normalizer(charsmap), "model": model}
    loaded = Tokenizer.from_str(json.dumps(content | dict.fromkeys(("pre_tokenizer", "post_processor", "decoder"))))
    assert loaded.normalizer is not None
    return loaded.normalizer.normalize_str(text)


def test_a_map_that_works_is_taken() -> None:
    check_charsmaps(Path("tokenizer.json"), normalizer(packed(UNITS)))
    assert normalized(packed(UNITS), "\uff41 é b") == "a e b"
    check_charsmaps(Path("tokenizer.json"), None)
    check_charsmaps(Path("tokenizer.json"), {"type": "NFC"})


def changed(place: int, unit: int) -> np.ndarray:
    units = UNITS.copy()
    units[place] = unit
    return units


BROKEN: dict[str, object] = {
    "empty": "",
    "no base64": "!!",
    "no ASCII": "é",
    "no size": "AAAA",
    "a number": 7,
    "null": None,
    "no table": base64.b64encode(struct.pack("<I", 0)).decode(),
    "a size of parts of units": packed(UNITS, size=3),
    "a size beyond the end": packed(UNITS, size=2**31),
    "texts that are not UTF-8": packed(UNITS, b"\xff"),
    "out of the table": packed(UNITS[:300]),
    "far out of the table": packed(changed(0, 1 << 9 | 2**20 << 10)),
    "out of the texts": packed(UNITS, b""),
    "into the midst of a character": packed(UNITS, "aéé".encode()),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_map_is_refused(kind: str) -> None:
    with pytest.raises(ModelError, match=r"tokenizer\.json: precompiled_charsmap is broken"):
        check_charsmaps(Path("tokenizer.json"), normalizer(BROKEN[kind]))


def test_a_map_beyond_all_measure_is_refused() -> None:
    with pytest.raises(ModelError, match="at most"):
        check_charsmaps(Path("tokenizer.json"), normalizer(packed(np.zeros(1 << 21, np.uint32))))


def test_a_chain_without_end_and_maps_without_number_are_refused() -> None:
    units = np.zeros(1 << 14, np.uint32)
    units[0] = 1 << 10
    places = np.arange(1, len(units) - 512)
    for base in places.tolist():  # byte 1 leads from each to the next but one
        units[base ^ 1] = ((base ^ 1) ^ (base + 1)) << 10 | 1
    with pytest.raises(ModelError, match="precompiled_charsmap is broken"):
        check_charsmaps(Path("tokenizer.json"), normalizer(packed(units)))
    several = [normalizer(packed(UNITS))] * 80
    with pytest.raises(ModelError, match=r"at most .* are allowed"):
        check_charsmaps(Path("tokenizer.json"), {"normalizers": several})


@given(place=st.integers(0, len(UNITS) - 1), unit=st.integers(0, 2**32 - 1), text=st.text(max_size=5))
def test_what_is_taken_never_panics(place: int, unit: int, text: str) -> None:
    reached = np.flatnonzero(UNITS)
    charsmap = packed(changed(int(reached[place % len(reached)]), unit))
    try:
        check_charsmaps(Path("tokenizer.json"), normalizer(charsmap))
    except ModelError:
        return
    normalized(charsmap, text + "\uff41é")
