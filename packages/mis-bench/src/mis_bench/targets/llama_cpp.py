"""llama.cpp: the query decoded once, its cache shared by many sequences, items decoded in batches."""

import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
from jaxtyping import Int64

from mis_bench.environment import checkpoint_sha256
from mis_bench.targets.base import About, CallFailed, TargetUnavailable
from mis_bench.targets.blocking import LocalModel, Logits, LogSumExps
from mis_bench.targets.gguf import gguf_file

_BATCH_TOKENS = 2048
_SEQUENCES = 64  # items in a batch; llama.cpp's own limit is 256

Run = tuple[int, int, list[int]]  # sequence, first position, tokens


class LlamaCpp(LocalModel):
    """llama.cpp through its C interface, with bfloat16 weights.

    Args:
        directory: Of a Qwen3 checkpoint; written as a GGUF file first if that was not done before.
        context_length: Tokens of a query and a batch of items.
        threads: That compute.

    Raises:
        TargetUnavailable: the checkpoint is of another family, or llama.cpp refuses it.
    """

    def __init__(self, directory: Path, context_length: int, threads: int) -> None:
        file = gguf_file(directory)
        self._c: Any = llama_cpp  # its declarations are those of C
        self._c.llama_log_set(_silent, ctypes.c_void_p(0))
        self._model = self._c.llama_model_load_from_file(str(file).encode(), self._c.llama_model_default_params())
        parameters = self._c.llama_context_default_params()
        parameters.n_ctx, parameters.n_batch, parameters.n_ubatch = context_length, _BATCH_TOKENS, 512
        parameters.n_seq_max, parameters.kv_unified = _SEQUENCES + 1, True
        parameters.n_threads = parameters.n_threads_batch = threads
        self._context = self._c.llama_init_from_model(self._model, parameters) if self._model else None
        if not self._context:
            raise TargetUnavailable(f"llama.cpp refused {file}.")
        self._memory = self._c.llama_get_memory(self._context)
        about = About(
            name="llama.cpp",
            backend="llama.cpp",
            model=str(directory),
            model_sha256=checkpoint_sha256(directory),
            dtype="bfloat16",
            options={"context_length": context_length, "batch": _SEQUENCES, "threads": threads},
            versions={"llama-cpp-python": llama_cpp.__version__},
        )
        vocab_size = self._c.llama_vocab_n_tokens(self._c.llama_model_get_vocab(self._model))
        super().__init__(about, vocab_size, context_length)

    def label_logits(
        self, query: list[int], items: list[list[int]], labels: Int64[np.ndarray, " labels"], *, with_sums: bool
    ) -> tuple[Logits, LogSumExps | None]:
        """Decode the query as sequence 0, items as sequences that share its cells."""
        room = min(_BATCH_TOKENS, self._context_length - len(query))
        if max(map(len, items)) > room:
            raise CallFailed("rejected", f"This target takes items of at most {room} tokens behind this query.")
        self._c.llama_memory_clear(self._memory, True)
        for begin in range(0, len(query), _BATCH_TOKENS):
            self._decode([(0, begin, query[begin : begin + _BATCH_TOKENS])])
        logits, sums = [], []
        for batch in _batches(items, room):
            for row in self._rows(len(query), batch):
                logits.append(row[labels])
                sums.append(_log_sum_exp(row) if with_sums else 0.0)
        return np.stack(logits), np.array(sums)

    def close(self) -> None:
        """Free the model."""
        with self._lock:
            if self._context:
                self._c.llama_free(self._context)
                self._c.llama_model_free(self._model)
                self._context = None

    def _rows(self, context: int, items: list[list[int]]) -> Iterator[np.ndarray]:
        """Yield the logits after each item, `[vocabulary]`; they are overwritten by the next step."""
        sequences = range(1, len(items) + 1)
        for sequence in sequences:
            self._c.llama_memory_seq_cp(self._memory, 0, sequence, 0, context)
        for place in self._decode([(sequence, context, items[sequence - 1]) for sequence in sequences]):
            pointer = self._c.llama_get_logits_ith(self._context, place)
            yield np.ctypeslib.as_array(pointer, (self._vocab_size,))
        for sequence in sequences:
            self._c.llama_memory_seq_rm(self._memory, sequence, -1, -1)

    def _decode(self, runs: list[Run]) -> list[int]:
        """Decode runs of tokens in one call; return the place of each one's last token."""
        count = sum(len(tokens) for _, _, tokens in runs)
        batch = self._c.llama_batch_init(count, 0, 1)
        place, last = 0, []
        for sequence, first, tokens in runs:
            for position, token in enumerate(tokens, first):
                batch.token[place], batch.pos[place] = token, position
                batch.n_seq_id[place], batch.seq_id[place][0] = 1, sequence
                batch.logits[place] = position == first + len(tokens) - 1
                place += 1
            last.append(place - 1)
        batch.n_tokens = count
        status = self._c.llama_decode(self._context, batch)
        self._c.llama_batch_free(batch)
        if status:
            raise CallFailed("error", f"llama_decode returned {status}.")
        return last


def _log_sum_exp(logits: np.ndarray) -> float:
    """Return it a good twenty times faster than SciPy, whose time would be llama.cpp's."""
    largest = logits.max()
    return float(largest + np.log(np.exp(logits - largest, dtype=np.float64).sum()))


def _batches(items: list[list[int]], room: int) -> Iterator[list[list[int]]]:
    """Yield items in groups that fit into the context at once."""
    batch: list[list[int]] = []
    for item in items:
        if batch and (len(batch) == _SEQUENCES or sum(map(len, batch)) + len(item) > room):
            yield batch
            batch = []
        batch.append(item)
    yield batch


@ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
def _silent(level: int, text: bytes, data: int) -> None:
    """Say nothing."""
