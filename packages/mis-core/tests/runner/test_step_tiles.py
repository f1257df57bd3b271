"""A step of a whole model on AMX's tile registers: no product and no load but those that its shapes need."""

import json
import os
from pathlib import Path

import pytest

from emulation import counted_by
from kernel_cases import Case, Segment
from mis_core.models.config import read_model_config
from mis_testing import tiny_checkpoint
from tile_counts import Tiles, of_attention, of_logits, of_product

pytestmark = pytest.mark.skipif("MIS_MAX_ISA" in os.environ, reason="needs a CPU without a limit: sets its own")
PROGRAM = Path(__file__).parents[1] / "support" / "count_step_tiles.py"
QUERY, ITEMS, LENGTH = 40, 6, 5
STEP, ROWS, HEAD_ROWS = 128, 96, 32
"""Rows of the step; those that are not zeros, in whole strips of 32; and those of the head."""


def test_a_step_multiplies_and_loads_no_other_tiles(tmp_path: Path) -> None:
    model = tiny_checkpoint(tmp_path / "model", head_dim=32)
    items = [[4, 5, 6, 7, 8 + number] for number in range(ITEMS)]  # equal ones would be computed once
    request = {"query": list(range(1, QUERY + 1)), "items": items, "label_token_ids": [7, 8]}
    found = Tiles.counted(counted_by(PROGRAM, str(model), json.dumps(request)))

    config = read_model_config(model)
    heads, kv_heads, head_dim = config.attention
    projection = of_product(ROWS, config.embed, (heads + 2 * kv_heads) * head_dim)

    def rest(rows: int) -> Tiles:
        out = of_product(rows, heads * head_dim, config.embed)
        return out + of_product(rows, config.embed, 2 * config.mlp) + of_product(rows, config.mlp, config.embed)

    segments = [Segment(QUERY, context_len=0, paged=True), *[Segment(LENGTH)] * ITEMS]
    case = Case(segments, (QUERY,), tokens=STEP, kv_heads=kv_heads, group=heads // kv_heads, head_dim=head_dim)
    whole = (projection + of_attention(case) + rest(ROWS)) * (len(config.layers) - 1)
    read = {*range(QUERY + LENGTH - 1, QUERY + LENGTH * ITEMS, LENGTH)}
    last = projection + of_attention(case, read) + rest(ITEMS)
    assert found == whole + last + of_logits(HEAD_ROWS, config.embed, config.vocab_size)
