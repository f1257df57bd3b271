"""Tiny models that also read images, around a text that `tiny_checkpoint` wrote."""

import shutil
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file, save_file

_QWEN_VISION = {
    "depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 1, "out_hidden_size": 64,
    "num_position_embeddings": 16,
}  # fmt: skip
_GEMMA_VISION = {
    "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1, "image_size": 16,
    "patch_size": 8,
}  # fmt: skip


def larger_checkpoint(path: Path, text: Path) -> Path:
    """Write a model with a language model as its text, and return its directory.

    One of Qwen3.5 has tensors of layers that guess tokens ahead, too, as published ones have.

    Args:
        path: Where to write it.
        text: A tiny `Gemma3ForCausalLM` or `Qwen3_5ForCausalLM`.
    """
    import torch
    import transformers
    from transformers import AutoModelForCausalLM

    own = AutoModelForCausalLM.from_pretrained(text, dtype=torch.bfloat16)
    name = type(own).__name__.removesuffix("ForCausalLM")
    vision = {"vision_config": _QWEN_VISION}
    if name == "Gemma3":
        vision = {"vision_config": transformers.SiglipVisionConfig(**_GEMMA_VISION), "mm_tokens_per_image": 4}
    settings = getattr(transformers, f"{name}Config")(
        text_config=own.config.to_dict(), tie_word_embeddings=own.config.tie_word_embeddings, **vision
    )
    whole = getattr(transformers, f"{name}ForConditionalGeneration")(settings).to(torch.bfloat16)
    whole.model.language_model.load_state_dict(own.model.state_dict())
    whole.lm_head.load_state_dict(own.lm_head.state_dict())
    whole.save_pretrained(path)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(text / file, path)
    if name == "Qwen3_5":
        stored = load_file(path / "model.safetensors")
        ahead = stored["model.language_model.layers.1.self_attn.q_proj.weight"]
        save_file(stored | {"mtp.layers.0.self_attn.q_proj.weight": ahead}, path / "model.safetensors")
    return path


def with_classes(path: Path, architecture: str, labels: tuple[str, ...]) -> Path:
    """Put a classifier with random rows in the place of a model's head, and return its directory."""
    import torch
    import transformers

    rows: dict[str, Any] = {
        "id2label": dict(enumerate(labels)),
        "label2id": {label: row for row, label in enumerate(labels)},
    }
    model = getattr(transformers, architecture).from_pretrained(path, dtype=torch.float32, **rows)
    torch.manual_seed(5)
    for parameter in model.score.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(path)
    return path
