"""The definition of correct: Hugging Face transformers on PyTorch, one whole sequence at a time.

Deliberately plain: no batch, no padding, no cache, no code shared with MIS. It imports no other `mis_*`
package, and PyTorch only when an oracle is made.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Float32

LabelIds = Sequence[int] | Sequence[Sequence[int]]


class PointwiseOracle:
    """Scores of complete sequences from `AutoModelForCausalLM`, or the classifier of the checkpoint, on the CPU.

    Args:
        path: Checkpoint directory.
        dtype: `float32` or `bfloat16`, of weights and activations.
        attention: transformers' attention implementation, `eager` or `sdpa`.

    Raises:
        ImportError: PyTorch is not installed; says how to install it.
        ValueError: the checkpoint lacks tensors the model needs, or has others; names them.
    """

    def __init__(self, path: str | Path, dtype: str = "float32", attention: Literal["eager", "sdpa"] = "eager") -> None:
        torch = _import_torch()
        from transformers import AutoConfig, AutoModelForCausalLM
        from transformers import AutoModelForSequenceClassification as OfSequences
        from transformers import AutoModelForTokenClassification as OfTokens

        self.dtype = dtype
        self._torch = torch
        architectures = AutoConfig.from_pretrained(path).architectures or [""]
        heads = {"ForSequenceClassification": OfSequences, "ForTokenClassification": OfTokens}
        found = (head for name, head in heads.items() if architectures[0].endswith(name))
        model, info = next(found, AutoModelForCausalLM).from_pretrained(
            path, dtype=getattr(torch, dtype), attn_implementation=attention, output_loading_info=True
        )
        faults = {kind: sorted(names) for kind, names in info.items() if names}
        if faults:
            raise ValueError(f"The checkpoint and the model differ: {faults}.")
        self._model: Any = model.eval()

    def label_logprobs(
        self,
        sequences: Sequence[Sequence[int]],
        label_ids: LabelIds,
        *,
        position_ids: Sequence[Sequence[int]] | None = None,
    ) -> Float32[np.ndarray, "sequences labels"]:
        """Return the natural log of the full-vocabulary probability of each label as the next token.

        Args:
            sequences: Token ids of each whole sequence, none empty.
            label_ids: The same labels for all sequences, or one list of equal length per sequence.
            position_ids: Position of each token, for planting faults; default 0, 1, 2, ...

        Returns:
            Shape [sequences, labels].
        """
        labels = np.broadcast_to(np.asarray(label_ids, np.int64), (len(sequences), np.shape(label_ids)[-1]))
        rows = []
        for number, sequence in enumerate(sequences):
            positions = None if position_ids is None else position_ids[number]
            rows.append(self.next_token_logprobs(sequence, positions)[labels[number]])
        return np.stack(rows)

    def next_token_logprobs(
        self, sequence: Sequence[int], position_ids: Sequence[int] | None = None
    ) -> Float32[np.ndarray, " vocab"]:
        """Return natural log-probabilities of every token after one sequence; the softmax is float32."""
        if len(sequence) == 0:
            raise ValueError("A sequence must have at least one token.")
        torch = self._torch
        tokens = torch.tensor([list(sequence)])
        positions = torch.tensor([range(len(sequence)) if position_ids is None else list(position_ids)])
        # Without a mask, transformers takes a jump in the positions for the start of another sequence.
        mask = torch.ones_like(tokens)
        with torch.inference_mode():
            output = self._model(tokens, attention_mask=mask, position_ids=positions, use_cache=False, logits_to_keep=1)
            return torch.log_softmax(output.logits[0, -1].float(), dim=-1).numpy()

    def head_values(self, sequences: Sequence[Sequence[int]]) -> Float32[np.ndarray, "sequences labels"]:
        """Return the values of a classification head at the end of each sequence, or of one of tokens at every token.

        Those of tokens lie one after the other, `[tokens, labels]`.
        """
        torch = self._torch
        with torch.inference_mode():
            rows = [self._model(torch.tensor([list(sequence)]), use_cache=False).logits[0] for sequence in sequences]
        return (torch.cat if rows[0].ndim == 2 else torch.stack)(rows).float().numpy()

    def score(
        self,
        sequences: Sequence[Sequence[int]],
        label_ids: LabelIds,
        *,
        apply_softmax: bool = False,
        temperature: float = 1.0,
        position_ids: Sequence[Sequence[int]] | None = None,
    ) -> Float32[np.ndarray, "sequences labels"]:
        """Return what `Engine.score` must return for these sequences.

        Args:
            sequences: Token ids of each whole sequence (`query + item`).
            label_ids: As for `label_logprobs`.
            apply_softmax: Softmax over the labels instead of full-vocabulary probabilities.
            temperature: Divides the log-probabilities before that softmax.
            position_ids: As for `label_logprobs`.
        """
        logprobs = self.label_logprobs(sequences, label_ids, position_ids=position_ids)
        return softmax_over_labels(logprobs, temperature) if apply_softmax else np.exp(logprobs)


def softmax_over_labels(
    logprobs: Float32[np.ndarray, "rows labels"], temperature: float = 1.0
) -> Float32[np.ndarray, "rows labels"]:
    """Renormalise log-probabilities over the labels of each row."""
    scaled = logprobs.astype(np.float64) / temperature
    weights = np.exp(scaled - scaled.max(axis=-1, keepdims=True))
    return (weights / weights.sum(axis=-1, keepdims=True)).astype(np.float32)


def _import_torch() -> Any:
    try:
        import torch
    except ModuleNotFoundError as error:
        raise ImportError(
            "The oracle needs PyTorch: pip install 'mis-testing[oracle]' (the CPU build is enough)."
        ) from error
    return torch
