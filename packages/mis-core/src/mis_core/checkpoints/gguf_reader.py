"""Opens GGUF files: headers are read within bounds, tensors are mapped into memory.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. The `gguf` package reads it.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from mis_core.checkpoints.files import GGUF_HEADER, WEIGHTS, Files
from mis_core.errors import ModelError


def open_gguf(path: Path, files: Files, values: int = 0) -> Any:
    """Return the `gguf` package's reader of a file, whose tensors are mapped into memory.

    It has `values`: how many there are in the header, and were before.

    Args:
        path: The file.
        files: What bounds its header.
        values: How many values have been read of other files, which the bound counts as well.

    Raises:
        ModelError: the package is not installed, or the file is missing, broken or of a kind that is not read.
    """
    try:
        reader = _reader(files.most_values(GGUF_HEADER), values)
    except ModuleNotFoundError:
        raise ModelError(f"{path}: reading GGUF files needs the package gguf: pip install 'mis-core[gguf]'.") from None
    files.check(path, WEIGHTS)
    try:
        with path.open("rb") as file:
            if file.read(4) != b"GGUF":
                raise ModelError(f"{path}: not a GGUF file, and not a model directory.")
        file = reader(path)
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror or 'cannot be read'}.") from None
    # The reader checks little: what it meets in a broken file is whatever its bytes happen to say.
    except (ValueError, LookupError, ArithmeticError, RecursionError) as error:
        raise ModelError(f"{path}: a truncated or broken GGUF file ({str(error)[:100]!r}).") from None
    if file.byte_order != "I":
        raise ModelError(f"{path}: written for machines of the other byte order.")
    return file


def _reader(most_values: int, before: int) -> Callable[[Path], Any]:
    """Return what opens a file whose header has at most so many values, with those that were read before.

    Raises:
        ModuleNotFoundError: the package is not installed.
    """
    from gguf import GGUFReader, GGUFValueType

    class Reader(GGUFReader):
        """The package's own, many times faster with vocabularies: a memory map is slow to slice."""

        values = before

        def _get(self, offset: Any, dtype: Any, count: Any = 1, override_order: Any = None) -> np.ndarray:
            self._count(1)  # it becomes an array, however few bytes it has
            kind = np.dtype(dtype).newbyteorder(override_order or self.byte_order)
            return np.frombuffer(self.data, kind, int(count), int(offset))

        def _get_field_parts(self, orig_offs: int, raw_type: int) -> tuple[int, list[np.ndarray], list[int], list[Any]]:
            """Read an array of numbers at once, and one of texts without a call for each; all else as the package."""
            begin = int(orig_offs)
            if raw_type != GGUFValueType.ARRAY:
                return super()._get_field_parts(begin, raw_type)
            of, count = GGUFValueType(int(self._get(begin, np.uint32)[0])), int(self._get(begin + 4, np.uint64)[0])
            offset, types = begin + 12, [GGUFValueType.ARRAY, *([of] if count else [])]
            if of in self.gguf_scalar_to_np:
                self._count(count)
                numbers = self._get(offset, self.gguf_scalar_to_np[of], count)
                return 12 + numbers.nbytes, [numbers], [0], types
            if of != GGUFValueType.STRING:
                return super()._get_field_parts(begin, raw_type)
            self._count(2 * count)  # of each, its length and its bytes
            length, texts = np.dtype(np.uint64).newbyteorder(self.byte_order), []
            for _ in range(count):
                size = int(np.frombuffer(self.data, length, 1, offset)[0])
                texts.append(np.frombuffer(self.data, np.uint8, size, offset + 8))
                offset += 8 + size
            return offset - begin, texts, [*range(count)], types

        def _count(self, values: int) -> None:
            self.values += values
            if self.values > most_values:
                raise ValueError(f"more than {most_values:,} values in its header")

    return Reader
