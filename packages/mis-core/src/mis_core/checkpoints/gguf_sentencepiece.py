"""SentencePiece tokenizers of GGUF files, whose `tokenizer.ggml.model` is `llama`: pieces with scores, without merges.

llama.cpp begins with single characters. Of all neighbours that are a piece together it joins those with the highest
score, the leftmost of equals, until there are none; a character that is no piece becomes its bytes. BPE does that when
it has every split of every piece into two pieces as a merge, in the order of the scores. Splits of one piece need no
order: what happens within a stretch of text does not depend on what is beside it until a merge crosses its ends, so a
piece is always made by the same last merge, and no other split of it is ever met.

Two pieces of one score would need an order that BPE does not have, that of their places; such files are refused.
Sources: `llm_tokenizer_spm_session` and `tokenizer_st_partition` in `src/llama-vocab.cpp` of llama.cpp at 0c1e5709
(2026); `models/bpe/` of `tokenizers` 0.23.
"""

import math
from collections.abc import Sequence, Set
from itertools import pairwise

from tokenizers import Tokenizer, decoders, models, normalizers

from mis_core.errors import ModelError, shown

_SPACE = "▁"  # how pieces write a space
_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
_BYTE = 6  # type of a piece
# A split is looked up for every character of every piece: longer ones are not honest. Gemma's have 31 at most.
_LONGEST, _MOST_CHARACTERS = 256, 1 << 24


def sentencepiece_backend(
    tokens: Sequence[str],
    scores: Sequence[float],
    types: Sequence[int],
    *,
    found_whole: Sequence[int],
    unknown: str | None,
    has_space_prefix: bool,
) -> Tokenizer:
    """Build what encodes and decodes, without the tokens that are found in texts as they stand.

    Args:
        tokens: The pieces.
        scores: Their scores.
        types: Their types.
        found_whole: Types of those that are found in texts as they stand, and so are never joined of others.
        unknown: The piece of what is none.
        has_space_prefix: Whether a space comes before every text.

    Raises:
        ModelError: the pieces are no vocabulary of this kind; says why.
    """
    named = [token or f"[EMPTY_{number}]" for number, token in enumerate(tokens)]
    vocabulary = {token: number for number, token in enumerate(named)}
    if len(vocabulary) < len(named):
        twice = next(token for number, token in enumerate(named) if vocabulary[token] != number)
        raise ModelError(f"tokenizer.ggml.tokens has {shown(twice, 40)!r} twice.")
    if missing := [byte for byte in _BYTES if byte not in vocabulary]:
        raise ModelError(
            f"tokenizer.ggml.tokens has no piece {missing[0]}: characters without a piece would have no tokens."
        )
    # Only spaces are written otherwise before texts are joined, so other tokens that are found whole are not met.
    joined = [
        number
        for number, (token, kind) in enumerate(zip(named, types, strict=True))
        if kind != _BYTE and (kind not in found_whole or _SPACE in token)
    ]
    bpe = models.BPE(vocabulary, _merges(named, scores, joined), byte_fallback=True, unk_token=unknown)
    backend = Tokenizer(bpe)
    escaped = normalizers.Replace(" ", _SPACE)
    backend.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), escaped]) if has_space_prefix else escaped
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if has_space_prefix else steps)
    return backend


def _merges(tokens: Sequence[str], scores: Sequence[float], joined: Sequence[int]) -> list[tuple[str, str]]:
    """Return the splits of all pieces that are joined of others, the highest score first.

    Raises:
        ModelError: a score is not finite, two such pieces have the same score, one is joined of a character that is no
            piece, or they are too long.
    """
    if not all(map(math.isfinite, scores)):
        raise ModelError("tokenizer.ggml.scores has NaN or infinity, which give no order.")
    pieces = {tokens[number] for number in joined}
    lens = [*map(len, pieces)]
    if max(lens, default=0) > _LONGEST or sum(lens) > _MOST_CHARACTERS:
        raise ModelError(
            f"tokenizer.ggml.tokens has pieces of up to {max(lens):,} characters, {sum(lens):,} together; at most "
            f"{_LONGEST} and {_MOST_CHARACTERS:,} are read."
        )
    strange = set().union(*pieces).difference(tokens)
    for piece in filter(strange.intersection, pieces if strange else ()):
        if _splits(piece, pieces | strange):
            raise ModelError(f"tokenizer.ggml.tokens has {shown(piece, 40)!r}, one of whose characters is not a piece.")
    merges: list[tuple[str, str]] = []
    made: list[int] = []
    for number in sorted(joined, key=lambda number: -scores[number]):
        splits = _splits(tokens[number], pieces)
        merges += splits
        made += [number] * bool(splits)
    for one, other in pairwise(made):
        if scores[one] == scores[other]:
            both = " and ".join(repr(shown(tokens[number], 40)) for number in (one, other))
            raise ModelError(
                f"tokenizer.ggml.scores: {both} have the same score, so it is unknown which is joined first. With "
                "tokenizer_path, the directory of a Hugging Face tokenizer is used instead."
            )
    return merges


def _splits(piece: str, parts: Set[str]) -> list[tuple[str, str]]:
    """Return the ways in which a piece is two parts."""
    begun = [(piece[:end], piece[end:]) for end in range(1, len(piece)) if piece[:end] in parts]
    return [split for split in begun if split[1] in parts]
