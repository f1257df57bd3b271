"""Parts of a step that have a limit of their own, and the stages of each."""

from collections.abc import Mapping

GLUE, REST, GAPS = "norms and RoPE", "copies and the rest", "gaps"

PARTS: Mapping[str, tuple[str, ...]] = {
    "products": ("qkv", "out", "gate_up", "down"),
    "attention": ("attention",),
    "head": ("label_logits", "log_sum_exp"),
    GLUE: ("norm", "norm_rope", "final_norm"),
}
"""Stages of each part that has a limit."""

_PART_OF = {stage: part for part, stages in PARTS.items() for stage in stages}


def part_of(stage: str) -> str:
    """Return the part that a stage belongs to; those of no part with a limit are the rest."""
    return _PART_OF.get(stage, REST)
