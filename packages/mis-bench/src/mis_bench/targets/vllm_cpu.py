"""vLLM in this process, on the CPU build of it: one prompt for each item, which share its prefix cache."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import vllm
from jaxtyping import Int64

from mis_bench.environment import checkpoint_sha256
from mis_bench.targets.base import About, CallFailed, TargetUnavailable
from mis_bench.targets.local import LocalModel, Logits, LogSumExps


def open_vllm(model: Path, *, dtype: str, context_length: int) -> "VLLMCPU":
    """Load a checkpoint.

    Args:
        model: Its directory.
        dtype: `bfloat16` or `float32`.
        context_length: Most tokens of a sequence.

    Raises:
        TargetUnavailable: vLLM refuses the checkpoint or this machine.
    """
    try:
        loaded = vllm.LLM(model=str(model), dtype=dtype, max_model_len=context_length, enable_prefix_caching=True)
    except Exception as error:  # it raises many unrelated types; all mean the same to the user
        raise TargetUnavailable(f"vLLM cannot load {model}: {str(error).splitlines()[0][:200]}") from None
    return VLLMCPU(loaded, model, dtype, context_length)


class VLLMCPU(LocalModel):
    """vLLM's `LLM`, asked for the log-probabilities of the labels after every item."""

    def __init__(self, loaded: Any, directory: Path, dtype: str, context_length: int) -> None:
        about = About(
            name="vllm-cpu",
            backend="vllm",
            model=str(directory),
            model_sha256=checkpoint_sha256(directory),
            dtype=dtype,
            options={"context_length": context_length},
            versions={"vllm": vllm.__version__},
        )
        vocab_size = int(json.loads((directory / "config.json").read_text())["vocab_size"])
        super().__init__(about, vocab_size, context_length - 1)  # it generates one token
        self._llm = loaded

    def label_logits(
        self, query: list[int], items: list[list[int]], labels: Int64[np.ndarray, " labels"], *, with_sums: bool
    ) -> tuple[Logits, LogSumExps | None]:
        """Ask for one token after every item; log-probabilities are logits whose sums are 0."""
        asked = vllm.SamplingParams(max_tokens=1, temperature=0.0, logprob_token_ids=sorted(set(labels.tolist())))
        prompts = [{"prompt_token_ids": query + item} for item in items]
        outputs = self._llm.generate(prompts, asked, use_tqdm=False)
        try:
            found = [output.outputs[0].logprobs[0] for output in outputs]
            logprobs = np.array([[each[label].logprob for label in labels.tolist()] for each in found], np.float64)
        except (IndexError, KeyError, TypeError):
            raise CallFailed("missing_scores", "vLLM returned no log-probability for some label.") from None
        return logprobs, np.zeros(len(items))

    def forget(self) -> None:
        """Empty the prefix cache."""
        with self._lock:
            self._llm.reset_prefix_cache()

    def close(self) -> None:
        """Let go of the model; vLLM's engine may have a process of its own."""
        self._llm = None
