"""A model's files: settings, tensors and tokenizer, of a directory as the Hugging Face hub has them or a GGUF file."""

import logging
from pathlib import Path

from mis_core.checkpoints.checkpoint import Checkpoint, StoredTensor, StoredTokenizer
from mis_core.checkpoints.digests import ModelPart
from mis_core.checkpoints.directory import DirectoryCheckpoint
from mis_core.checkpoints.files import Files, inside
from mis_core.checkpoints.gguf_file import GgufCheckpoint
from mis_core.checkpoints.merged import LoraAdapter, MergedCheckpoint
from mis_core.checkpoints.packaged import PackagedCheckpoint
from mis_core.checkpoints.signs import NO_SIGNS, Sign, Signs
from mis_core.config import EngineConfig
from mis_core.errors import ModelError

logger = logging.getLogger(__name__)

__all__ = [
    "NO_SIGNS",
    "Checkpoint",
    "ModelPart",
    "Sign",
    "Signs",
    "StoredTensor",
    "StoredTokenizer",
    "open_checkpoint",
    "open_described",
    "open_model",
]


def open_checkpoint(path: str | Path | Checkpoint, max_file_bytes: int | None = None) -> Checkpoint:
    """Return the checkpoint at a path, whose files are read when they are asked for: a file is GGUF.

    Args:
        path: A directory or a file; or a checkpoint, which is returned.
        max_file_bytes: Largest size of a file that is read as a whole; None: by its kind (`files.KINDS`).
    """
    if isinstance(path, Checkpoint):
        return path
    path, files = Path(path), Files(max_file_bytes)
    return GgufCheckpoint(path, files) if path.is_file() else DirectoryCheckpoint(path, files)


def open_described(config: EngineConfig) -> Checkpoint:
    """Return the checkpoint that options name, with the head of `decision_head`; no adapter is merged into its weights.

    Args:
        config: Names local files only.
    """
    checkpoint = open_checkpoint(config.model, config.max_checkpoint_file_bytes)
    if config.decision_head is None:
        return checkpoint
    return PackagedCheckpoint(checkpoint, Path(config.decision_head), Files(config.max_checkpoint_file_bytes))


def open_model(config: EngineConfig) -> Checkpoint:
    """Return `open_described` with the adapters that the model is to be served with merged into its weights.

    These are that of `decision.json`, where its prompts are used, or of `decision_head`, and that of `merge_lora`.

    Args:
        config: Names local files only.

    Raises:
        ModelError: what names an adapter is broken.
    """
    checkpoint, files = open_described(config), Files(config.max_checkpoint_file_bytes)
    adapters: list[LoraAdapter] = []
    if isinstance(checkpoint, PackagedCheckpoint):
        adapters.append(checkpoint.adapter)
    elif config.decision_prompt is None:
        name = (checkpoint.decision().settings or {}).get("adapter")
        where = f"{checkpoint.path}: adapter of decision.json"
        if not isinstance(name, str | None):
            raise ModelError(f"{where} must be the name of a folder.")
        if name is not None:
            adapters.append(LoraAdapter(inside(checkpoint.path, name, where), files))
            logger.info("The adapter %s of decision.json is merged into the weights, whatever is asked.", name)
    adapters += [] if config.merge_lora is None else [LoraAdapter(Path(config.merge_lora), files)]
    return MergedCheckpoint(checkpoint, adapters) if adapters else checkpoint
