"""Greedy generation is that of transformers on PyTorch, for every family, as far as float32 tells tokens apart."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mis_core import Engine
from mis_core.tasks.text.choices import GeneratedChoice
from mis_testing import tiny_checkpoint
from mis_testing.options import SMALL_ENGINE
from mis_testing.shapes import FAMILIES

pytestmark = pytest.mark.parity

TOKENS = 64
APART = 1e-3
"""Two tokens whose log-probabilities are nearer may come in either order."""

_random = np.random.default_rng(11)
PROMPTS = [_random.integers(0, 300, length).tolist() for length in (1, 5, 63, 64, 65, 100, 130, 300)]


def length_that_agrees(model: torch.nn.Module, prompt: list[int], choice: GeneratedChoice, tolerance: float) -> int:
    """Return how many tokens are the oracle's before its two most probable ones are as good as equal.

    The oracle computes the whole sequence in one pass, so each position follows the tokens that the engine generated.
    """
    with torch.no_grad():
        sequence = torch.tensor([[*prompt, *choice.token_ids.tolist()]])
        logprobs = torch.log_softmax(model(sequence).logits[0].float(), -1).numpy()
    for place, (token, logprob) in enumerate(zip(choice.token_ids, choice.token_logprobs, strict=True)):
        expected = logprobs[len(prompt) + place - 1]
        best, second = np.sort(expected)[:-3:-1]
        if best - second < APART:
            return place
        assert token == expected.argmax()
        np.testing.assert_allclose(logprob, best, atol=tolerance)
    return len(choice.token_ids)


MODELS: list[tuple[str, dict[str, Any]]] = [
    *((family, {}) for family in FAMILIES),
    ("mistral", {"sliding_window": 64}),
]


@pytest.mark.parametrize(
    ("family", "sizes"),
    [pytest.param(*model, marks=() if model[0] in {"qwen3", "qwen3_5"} else pytest.mark.full) for model in MODELS],
)
def test_tokens_and_log_probabilities(family: str, sizes: dict[str, Any], tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    path = tiny_checkpoint(tmp_path / family, family, **sizes)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    with Engine.from_pretrained(path, progress=False, **SMALL_ENGINE) as engine, ThreadPoolExecutor(8) as pool:
        # All at once, so that each is written beside seven others.
        results = pool.map(lambda prompt: engine.generate(prompt, TOKENS, temperature=0, ignore_eos=True), PROMPTS)
        choices = [result.choices[0] for result in results]
    assert all(len(choice.token_ids) == TOKENS for choice in choices)
    lengths = [length_that_agrees(model, *each, 1e-4) for each in zip(PROMPTS, choices, strict=True)]
    assert sum(length == TOKENS for length in lengths) >= 6


def test_the_comparison_notices_a_token_that_is_not_the_oracles(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    path = tiny_checkpoint(tmp_path / "qwen3", "qwen3")
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    with Engine.from_pretrained(path, progress=False, **SMALL_ENGINE) as engine:
        (choice,) = engine.generate(PROMPTS[3], 8, temperature=0, ignore_eos=True).choices
    length_that_agrees(model, PROMPTS[3], choice, 1e-4)
    with pytest.raises(AssertionError):
        length_that_agrees(model, [*PROMPTS[3][:-1], 7], choice, 1e-4)
