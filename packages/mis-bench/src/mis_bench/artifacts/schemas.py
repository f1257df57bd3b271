"""JSON schemas of every kind of artifact, written by `python -m mis_bench.artifacts.schemas docs/schemas`."""

import json
import sys
from pathlib import Path

from mis_bench.artifacts.base import kinds


def schemas() -> dict[str, str]:
    """Return the text of every file by its name, `mis-run-v1.json` for instance."""
    return {
        f"{name}.json": json.dumps({"$schema": _DIALECT, **kind.model_json_schema()}, indent=1) + "\n"
        for name, kind in sorted(kinds().items())
    }


def write_schemas(folder: Path) -> None:
    """Write the files, and delete those of kinds that are no more.

    Raises:
        OSError: the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    texts = schemas()
    for path in folder.glob("*.json"):
        if path.name not in texts:
            path.unlink()
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")


_DIALECT = "https://json-schema.org/draft/2020-12/schema"

if __name__ == "__main__":
    write_schemas(Path(sys.argv[1]))
