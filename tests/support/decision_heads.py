"""Checkpoints with trained decision heads, whose values are random."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from larger_models import larger_checkpoint
from mis_testing import tiny_checkpoint

DIMENSIONS = 24  # of a pointer head
EMBED, SLOTS = 64, 12
CODES = [*"ABCDEFG"]
JUDGE: dict[str, Any] = {
    "slots": {
        "num_slots": SLOTS,
        "verbalizers": ["No", "Yes", "0", "1", "2", "3", "4", *"ABCDE"],
        "ranges": {"noul": [0, 2], "score": [2, 7], "choice": [7, 12]},
    },
    "softcap": 1.5,  # which bites: values are several times as high
    "adapter_subfolder": None,
}
CALIBRATION = {"per_kind": {"noul": 0.8, "choice": 1.7, "score": 1.2}}


def rows(count: int) -> np.ndarray:
    return np.random.default_rng(3).standard_normal((count, EMBED)).astype(np.float32)


def with_readout(path: Path, **fields: Any) -> Path:
    settings = {"codes": CODES, "token_ids": [*range(7)], "temperature": 1.3, "prompt": "d3", "format_version": 1}
    (path / "decision_config.json").write_text(json.dumps(settings | fields))
    save_file({"weight": 0.2 * rows(len(CODES))}, path / "readout.safetensors")
    return path


def with_judge(path: Path, **fields: Any) -> Path:
    (path / "judge_config.json").write_text(json.dumps(JUDGE | fields))
    (path / "calibration.json").write_text(json.dumps(CALIBRATION))
    save_file({"proj.weight": rows(SLOTS), "proj.bias": rows(SLOTS)[:, 0].copy()}, path / "head.safetensors")
    return path


def pointer_package(
    path: Path, family: str = "qwen3", *, grows: bool = False, reads_images: bool = False, **options: Any
) -> Path:
    """Write a folder as any2jev does, of a model with random weights, and return it; the model is in `base` beside it.

    Args:
        path: Where to write both.
        family: Of the model, as for `tiny_checkpoint`.
        grows: The tokenizer has delimiters of its own, behind all tokens of the model.
        reads_images: The language model is the text of a larger one.
        **options: Of any2jev.
    """
    import torch
    from any2jev.model import DecisionModel
    from any2jev.packing import NEW_DELIM_TOKENS
    from transformers import AutoTokenizer

    base = path / "base"
    text = tiny_checkpoint(path / "text" if reads_images else base, family)
    if grows:
        tokenizer = AutoTokenizer.from_pretrained(text)
        tiny_checkpoint(text, family, vocab_size=len(tokenizer))
        tokenizer.add_special_tokens({"additional_special_tokens": list(NEW_DELIM_TOKENS)})
        tokenizer.save_pretrained(text)
    if reads_images:
        larger_checkpoint(base, text)
    torch.manual_seed(3)
    model = DecisionModel.from_base(str(base), device="cpu", head_dim=DIMENSIONS, lora_r=4, **options)
    for name, parameter in model.named_parameters():
        if "lora_B" in name or "trainable_tokens" in name:
            torch.nn.init.normal_(parameter, std=0.2)
        elif name.startswith("head."):
            torch.nn.init.normal_(parameter, std=0.3)
    model.temperature = 1.7
    return model.save(path / "package")
