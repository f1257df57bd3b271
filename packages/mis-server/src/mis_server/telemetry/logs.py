"""Logs of the front process: one line per event, for people or as JSON."""

import logging
import os

from pythonjsonlogger.json import JsonFormatter

_CHATTY = ("uvicorn", "httpx", "huggingface_hub", "asyncio")


def log_to_stderr(format: str, level: str) -> None:
    """Set up logging in this process.

    Args:
        format: `human`, or `json`: one object per line.
        level: Minimum level, such as `info`.
    """
    # Read when `transformers` is imported, which otherwise advises to install PyTorch; nothing here needs it.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    handler = logging.StreamHandler()
    if format == "json":
        names = {"asctime": "time", "levelname": "level", "name": "logger"}
        handler.setFormatter(JsonFormatter("%(asctime)s %(levelname)s %(name)s %(message)s", rename_fields=names))
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # No format here shows these, so they need not be collected; see "Optimization" in Python's logging HOWTO.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None  # type: ignore[attr-defined]
    for name in _CHATTY:
        logging.getLogger(name).setLevel(logging.WARNING)
