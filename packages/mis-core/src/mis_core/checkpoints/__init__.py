"""A model's files: settings, tensors and tokenizer, of a directory as the Hugging Face hub has them or a GGUF file."""

from pathlib import Path

from mis_core.checkpoints.checkpoint import Checkpoint, StoredTensor, StoredTokenizer
from mis_core.checkpoints.directory import DirectoryCheckpoint
from mis_core.checkpoints.files import Files
from mis_core.checkpoints.gguf_file import GgufCheckpoint
from mis_core.checkpoints.signs import NO_SIGNS, Sign, Signs

__all__ = ["NO_SIGNS", "Checkpoint", "Sign", "Signs", "StoredTensor", "StoredTokenizer", "open_checkpoint"]


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
