"""llama.cpp: the query decoded once, its cache shared by many sequences, items decoded in batches."""

import ctypes
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
from jaxtyping import Float, Int64

from mis_bench.checkpoints import cache_folder
from mis_bench.environment import checkpoint_sha256
from mis_bench.targets.blocking import LocalModel
from mis_bench.targets.target import About, CallFailed, TargetUnavailable
from mis_testing.gguf_file import write_gguf

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

    def label_logprobs(
        self, query: list[int], items: list[list[int]], labels: Int64[np.ndarray, " labels"]
    ) -> Float[np.ndarray, "items labels"]:
        """Decode the query as sequence 0, items as sequences that share its cells."""
        room = min(_BATCH_TOKENS, self._context_length - len(query))
        size = min(_SEQUENCES, room // max(map(len, items)))
        if not size:
            raise CallFailed("rejected", f"This target takes items of at most {room} tokens after this query.")
        self._c.llama_memory_clear(self._memory, True)
        for begin in range(0, len(query), _BATCH_TOKENS):
            self._decode([(0, begin, query[begin : begin + _BATCH_TOKENS])])
        batches = (items[begin : begin + size] for begin in range(0, len(items), size))
        rows = (row for batch in batches for row in self._rows(len(query), batch))
        return np.stack([row[labels] - _log_sum_exp(row) for row in rows])

    def generate(self, prompts: list[list[int]], count: int) -> Iterator[list[int]]:
        """Yield the most probable next token of every prompt, `count` times: all of them in one batch.

        Args:
            prompts: Of at least one token each, at most 64.
            count: Tokens that are written behind each.

        Raises:
            CallFailed: llama.cpp has no room for that.
        """
        self._c.llama_memory_clear(self._memory, True)
        runs: list[Run] = [(sequence, 0, prompt) for sequence, prompt in enumerate(prompts)]
        for _ in range(count):
            tokens = []
            for row in self._decode(runs):
                pointer = self._c.llama_get_logits_ith(self._context, row)
                tokens.append(int(np.ctypeslib.as_array(pointer, (self._vocab_size,)).argmax()))
            yield tokens
            runs = [
                (sequence, first + len(run), [token])
                for (sequence, first, run), token in zip(runs, tokens, strict=True)
            ]

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
        for row in self._decode([(sequence, context, items[sequence - 1]) for sequence in sequences]):
            pointer = self._c.llama_get_logits_ith(self._context, row)
            yield np.ctypeslib.as_array(pointer, (self._vocab_size,))
        for sequence in sequences:
            self._c.llama_memory_seq_rm(self._memory, sequence, -1, -1)

    def _decode(self, runs: list[Run]) -> list[int]:
        """Decode runs of tokens in one call; return the place of each one's last token."""
        count = sum(len(tokens) for _, _, tokens in runs)
        batch = self._c.llama_batch_init(count, 0, 1)
        row, last = 0, []
        for sequence, first, tokens in runs:
            for position, token in enumerate(tokens, first):
                batch.token[row], batch.pos[row] = token, position
                batch.n_seq_id[row], batch.seq_id[row][0] = 1, sequence
                batch.logits[row] = position == first + len(tokens) - 1
                row += 1
            last.append(row - 1)
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


def gguf_file(directory: Path) -> Path:
    """Return a Qwen3 checkpoint's GGUF file, without a vocabulary; written once, into `~/.cache/mis-bench`."""
    config = json.loads((directory / "config.json").read_text())
    if config.get("model_type") != "qwen3":  # its tensors lie as llama.cpp wants them
        raise TargetUnavailable(f"llama.cpp is compared on qwen3 only; {directory} is {config.get('model_type')}.")
    file = cache_folder() / f"{checkpoint_sha256(directory)}.gguf"
    if not file.exists():
        partial = file.with_suffix(".partial")
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            write_gguf(partial, directory, quantization=None, has_vocabulary=False)
            partial.replace(file)
        except OSError as error:
            raise TargetUnavailable(f"{file} cannot be written: {error.strerror or error}.") from None
        finally:
            partial.unlink(missing_ok=True)
    return file


@ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
def _silent(level: int, text: bytes, data: int) -> None:
    """Say nothing."""
