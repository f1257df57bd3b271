"""Where a model's files are: a directory, or a name that the Hugging Face hub client resolves."""

from pathlib import Path

from huggingface_hub import snapshot_download

from mis_core.errors import ModelError

# Weights and plain data only; never code.
_FILES = ["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja"]


def resolve_model(model: str) -> Path:
    """Return the local directory of a model, downloading or finding it in the hub's cache if need be.

    Raises:
        ModelError: there is no such directory, and the hub client cannot provide the name.
    """
    path = Path(model)
    if path.is_dir():
        return path
    if path.is_absolute() or model.startswith(".") or model.count("/") > 1:
        raise ModelError(f"Model directory {model!r} does not exist.")
    try:
        return Path(snapshot_download(model, allow_patterns=_FILES))
    except Exception as error:  # the client raises many unrelated types; all mean the same to the user
        raise ModelError(
            f"Model {model!r} is neither a directory nor available from the model hub ({type(error).__name__})."
        ) from None
