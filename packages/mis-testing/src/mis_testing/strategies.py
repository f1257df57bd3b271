"""Hypothesis strategies shared by property tests: text that is hard to cut.

Imported by tests only; `hypothesis` comes with the `plugin` extra.
"""

from hypothesis import strategies as st

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


def seam_texts(max_pieces: int = 8) -> st.SearchStrategy[str]:
    """Texts, possibly empty, whose tokens may change where two of them are joined."""
    anything = st.characters(exclude_categories=["Cs"])  # lone surrogates are not text
    return st.lists(st.one_of(st.sampled_from(_PIECES), anything), max_size=max_pieces).map("".join)


@st.composite
def seam_pairs(draw: st.DrawFn, max_pieces: int = 8) -> tuple[str, str]:
    """A query and an item: such a text cut anywhere, inside a special token or a cluster of marks too."""
    text = draw(seam_texts(max_pieces))
    cut = draw(st.integers(0, len(text)))
    return text[:cut], text[cut:]
