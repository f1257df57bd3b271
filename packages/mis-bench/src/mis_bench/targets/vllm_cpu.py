"""vLLM in this process, on the CPU build of it: one prompt for each item, which share its prefix cache."""

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import vllm

from mis_bench.environment import checkpoint_sha256
from mis_bench.targets.base import About, CallFailed, Reply, TargetUnavailable
from mis_bench.targets.local import resident_bytes, scores_of, token_ids
from mis_bench.targets.options import check_names, choice, positive
from mis_bench.workload import Workload


def open_vllm(model: Path, options: Mapping[str, str]) -> "VLLMCPU":
    """Load a checkpoint.

    Args:
        model: Its directory.
        options: `dtype`, `bfloat16` (default) or `float32`; `context_length`, most tokens of a sequence (8192).

    Raises:
        TargetUnavailable: an option is wrong, or vLLM refuses the checkpoint or this machine.
    """
    check_names("vllm-cpu", options, ("dtype", "context_length"))
    dtype = choice(options, "dtype", "bfloat16", "float32")
    context_length = positive(options, "context_length", 8192)
    try:
        loaded = vllm.LLM(model=str(model), dtype=dtype, max_model_len=context_length, enable_prefix_caching=True)
    except Exception as error:  # it raises many unrelated types; all mean the same to the user
        raise TargetUnavailable(f"vLLM cannot load {model}: {str(error).splitlines()[0][:200]}") from None
    return VLLMCPU(loaded, model, dtype, context_length)


class VLLMCPU:
    """vLLM's `LLM`, asked for the log-probabilities of the labels after every item."""

    def __init__(self, loaded: Any, directory: Path, dtype: str, context_length: int) -> None:
        self._llm, self._context_length = loaded, context_length
        self._vocab_size = int(json.loads((directory / "config.json").read_text())["vocab_size"])
        self._lock = threading.Lock()  # `LLM` is for one caller
        self._about = About(
            name="vllm-cpu",
            backend="vllm",
            model=str(directory),
            model_sha256=checkpoint_sha256(directory),
            dtype=dtype,
            options={"context_length": context_length},
            versions={"vllm": vllm.__version__},
        )

    @property
    def about(self) -> About:
        """What it is."""
        return self._about

    def score(self, workload: Workload) -> Reply:
        """Score a workload of token ids.

        Raises:
            CallFailed: `rejected`, `missing_scores` or `error`.
        """
        query, items = token_ids(workload, self._vocab_size, self._context_length - 1)  # it generates one token
        labels = workload.label_token_ids.tolist()
        asked = vllm.SamplingParams(max_tokens=1, temperature=0.0, logprob_token_ids=sorted(set(labels)))
        prompts = [{"prompt_token_ids": query + item} for item in items]
        try:
            with self._lock:
                outputs = self._llm.generate(prompts, asked, use_tqdm=False)
        except RuntimeError as error:
            raise CallFailed("error", str(error).splitlines()[0]) from error
        try:
            found = [output.outputs[0].logprobs[0] for output in outputs]
            logprobs = np.array([[each[label].logprob for label in labels] for each in found], np.float64)
        except (IndexError, KeyError, TypeError):
            raise CallFailed("missing_scores", "vLLM returned no log-probability for some label.") from None
        return Reply(scores_of(logprobs, None if workload.apply_softmax else np.zeros(len(items))))

    def forget(self) -> None:
        """Empty the prefix cache."""
        with self._lock:
            self._llm.reset_prefix_cache()

    def counts(self) -> dict[str, float]:
        """Return `memory_bytes`, this process's resident memory; vLLM's engine may have a process of its own."""
        return {"memory_bytes": float(resident_bytes())}

    def close(self) -> None:
        """Let go of the model."""
        self._llm = None
