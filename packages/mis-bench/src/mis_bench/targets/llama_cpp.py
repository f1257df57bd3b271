"""llama.cpp: the query decoded once, its cache shared by many sequences, items decoded in batches."""

import ctypes
import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np

from mis_bench.environment import checkpoint_sha256
from mis_bench.targets.base import About, CallFailed, Reply, TargetUnavailable
from mis_bench.targets.gguf import gguf_file, vocab_size
from mis_bench.targets.local import resident_bytes, scores_of, token_ids
from mis_bench.targets.options import check_names, positive
from mis_bench.workload import Workload

_BATCH_TOKENS = 2048
_SEQUENCES = 64  # items in a batch; llama.cpp's own limit is 256

Run = tuple[int, int, list[int]]  # sequence, first position, tokens


def open_llama_cpp(model: Path, options: Mapping[str, str]) -> "LlamaCpp":
    """Load a Qwen3 checkpoint, written as a GGUF file first if that was not done before.

    Args:
        model: Its directory.
        options: `context_length`, tokens of a query and a batch of items (8192); `threads`, as many as there are cores.

    Raises:
        TargetUnavailable: an option is wrong, or the checkpoint is of another family.
    """
    check_names("llama.cpp", options, ("context_length", "threads"))
    context_length, threads = (
        positive(options, "context_length", 8192),
        positive(options, "threads", os.cpu_count() or 1),
    )
    return LlamaCpp(model, gguf_file(model), context_length, threads)


class LlamaCpp:
    """llama.cpp through its C interface, with bfloat16 weights."""

    def __init__(self, directory: Path, file: Path, context_length: int, threads: int) -> None:
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
        self._context_length, self._vocab_size = context_length, vocab_size(directory)
        self._lock = threading.Lock()  # one context, one call at a time
        self._about = About(
            name="llama.cpp",
            backend="llama.cpp",
            model=str(directory),
            model_sha256=checkpoint_sha256(directory),
            dtype="bfloat16",
            options={"context_length": context_length, "batch": _SEQUENCES, "threads": threads},
            versions={"llama-cpp-python": llama_cpp.__version__},
        )

    @property
    def about(self) -> About:
        """What it is."""
        return self._about

    def score(self, workload: Workload) -> Reply:
        """Score a workload of token ids: the query as sequence 0, items as sequences that share its cells.

        Raises:
            CallFailed: `rejected`, or `error`.
        """
        query, items = token_ids(workload, self._vocab_size, self._context_length)
        room = min(_BATCH_TOKENS, self._context_length - len(query))
        if max(map(len, items)) > room:
            raise CallFailed("rejected", f"This target takes items of at most {room} tokens behind this query.")
        with self._lock:
            self._c.llama_memory_clear(self._memory, True)
            rows = list(self._rows(query, items, room, workload))
        logits, log_sum_exp = (np.stack(each) for each in zip(*rows, strict=True))
        return Reply(scores_of(logits, None if workload.apply_softmax else log_sum_exp))

    def forget(self) -> None:
        """Nothing: it keeps nothing between calls."""

    def counts(self) -> dict[str, float]:
        """Return `memory_bytes`, this process's resident memory."""
        return {"memory_bytes": float(resident_bytes())}

    def close(self) -> None:
        """Free the model."""
        with self._lock:
            if self._context:
                self._c.llama_free(self._context)
                self._c.llama_model_free(self._model)
                self._context = None

    def _rows(
        self, query: list[int], items: list[list[int]], room: int, workload: Workload
    ) -> Iterator[tuple[np.ndarray, np.float64]]:
        """Yield each item's label logits, and the log of the sum over the vocabulary if it is needed."""
        places = [0]
        for begin in range(0, len(query), _BATCH_TOKENS):
            places = self._decode([(0, begin, query[begin : begin + _BATCH_TOKENS])])
        after_query = self._read(places[-1], workload)
        for batch in _batches(items, room):
            runs = [(number, len(query), item) for number, item in enumerate(batch, 1) if item]
            for sequence, _, _ in runs:
                self._c.llama_memory_seq_cp(self._memory, 0, sequence, 0, len(query))
            found = (self._read(place, workload) for place in self._decode(runs)) if runs else iter(())
            yield from [next(found) if item else after_query for item in batch]
            for sequence, _, _ in runs:
                self._c.llama_memory_seq_rm(self._memory, sequence, -1, -1)

    def _read(self, place: int, workload: Workload) -> tuple[np.ndarray, np.float64]:
        pointer = self._c.llama_get_logits_ith(self._context, place)
        logits = np.ctypeslib.as_array(pointer, (self._vocab_size,))
        of_labels = logits[workload.label_token_ids].astype(np.float64)
        if workload.apply_softmax:
            return of_labels, np.float64(0)
        largest = logits.max()
        return of_labels, largest + np.log(np.exp(logits - largest, dtype=np.float64).sum())

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


def _batches(items: list[list[int]], room: int) -> Iterator[list[list[int]]]:
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
