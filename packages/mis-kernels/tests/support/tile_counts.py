"""How many tiles the native library multiplies and loads in AMX's registers, by the shapes of what it computes."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from kernel_cases import Case

TILE_KEYS = 256
"""Keys that a block of rows takes at once (`kTileKeys` of `native/tiles.h`)."""

PASS = 512
"""Summands after which sums of many rows leave their registers (`kDepth` of `native/linear.cc`)."""


@dataclass(frozen=True)
class Tiles:
    """Products of tiles, and loads of registers."""

    multiplied: int = 0
    loaded: int = 0

    def __add__(self, other: "Tiles") -> "Tiles":
        return Tiles(self.multiplied + other.multiplied, self.loaded + other.loaded)

    def __mul__(self, times: int) -> "Tiles":
        return Tiles(self.multiplied * times, self.loaded * times)

    @classmethod
    def counted(cls, counts: dict[str, int]) -> "Tiles":
        """Return those of a call in bfloat16, as `emulation.take_counts` has them."""
        return cls(counts["multiplied_bfloat16"], counts["loaded"])


def of_product(rows: int, depth: int, columns: int) -> Tiles:
    """Return the tiles of up to 256 rows `[rows, depth]` times packed weights `[depth, columns]`.

    32 rows load a weight once. Two tiles of weights load a row once. Sums of more than 32 rows are loaded again in each
    pass over the summands but the first.
    """
    halves, strips, weights, steps = -(-rows // 16), -(-rows // 32), columns // 16, depth // 32
    passes = 1 if rows <= 32 else -(-depth // PASS)
    loads = halves * weights // 2 + strips * weights
    return Tiles(halves * weights * steps, loads * steps + halves * weights * (passes - 1))


def of_logits(rows: int, depth: int, vocab: int) -> Tiles:
    """Return the tiles of rows `[rows, depth]` times a head `[vocab, depth]`, of which 32 rows meet 32 tokens."""
    row_tiles, row_strips, token_tiles, token_strips = -(-rows // 16), -(-rows // 32), -(-vocab // 16), -(-vocab // 32)
    loads = token_tiles * row_strips + row_tiles * token_strips
    return Tiles(token_tiles * row_tiles * depth // 32, loads * depth // 32)


def of_attention(case: Case, read: Collection[int] | None = None) -> Tiles:
    """Return the least tiles of a step's attention: for what each 32 rows of a head see, keys by 32.

    Rows are a token's heads of a group, token by token. First they see their contexts, with those of the same context
    beside them, then their own segments. Segments with pages are part of their contexts.

    Args:
        case: The step.
        read: Tokens whose result is read; None: all.
    """
    blocks: dict[int, list[int]] = {}
    found = Tiles()
    for segment, start in zip(case.segments, case.layout("xla")[1].tolist(), strict=True):
        before = case.contexts[segment.context] if segment.context_len is None else segment.context_len
        tokens = [token for token in range(segment.length) if read is None or start + token in read]
        positions = [position for position in tokens for _ in range(case.group)]
        cached = [before + position + 1 if segment.paged else before for position in positions]
        blocks.setdefault(segment.context, []).extend(cached)
        if not segment.paged:
            found += _of_rows([position + 1 for position in positions], case.head_dim)
    return sum((_of_rows(seen, case.head_dim) for seen in blocks.values()), found) * case.kv_heads


def _of_rows(seen: Sequence[int], head_dim: int) -> Tiles:
    """Return the tiles of rows of a head that see so many keys each, from the first on: of logits and of values.

    32 rows meet 32 keys in four products for 32 numbers of a head, with four loads, up to 16 rows in two with three;
    likewise their values. Sums of values are loaded for each `TILE_KEYS` keys.
    """
    found = Tiles()
    for strip in (seen[first : first + 32] for first in range(0, len(seen), 32)):
        halves, keys = 2 if len(strip) > 16 else 1, max(strip)
        meetings, sums = -(-keys // 32) * head_dim // 32, -(-keys // TILE_KEYS) * head_dim // 32
        found += Tiles(2 * 2 * halves, 2 * (2 + halves)) * meetings + Tiles(loaded=2 * halves) * sums
    return found
