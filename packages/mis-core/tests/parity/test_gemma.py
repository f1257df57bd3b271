"""Gemma 2 and 3 have the scores of transformers, also as the text of larger models; faults in their arithmetic show."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from larger_models import larger_checkpoint, with_classes
from mis_core import Engine
from mis_core.checkpoints.directory import DirectoryCheckpoint
from mis_core.models import config
from mis_core.runner import head, sampling, step
from mis_kernels.backends.native import calls, library
from mis_testing.options import SMALL_ENGINE
from mis_testing.oracle import PointwiseOracle
from mis_testing.tolerances import assert_scores_close

pytestmark = pytest.mark.parity
WITHOUT = library.why_not()
NEEDS_NATIVE = pytest.mark.skipif(WITHOUT is not None, reason=f"needs native logits: this machine {WITHOUT}")

_random = np.random.default_rng(5)
QUERY: list[int] = _random.integers(0, 900, 90).tolist()
ITEMS: list[list[int]] = [_random.integers(0, 900, length).tolist() for length in (5, 1, 17, 60)]
SEQUENCES = [[*QUERY, *item] for item in ITEMS]
LABELS = [271, 269, 276, 5]


def engine_of(path: Path, **options: Any) -> Engine:
    """Return an engine of its own: faults are planted before it compiles."""
    return Engine.from_pretrained(path, progress=False, **SMALL_ENGINE | options)


# What reads logits of the head, and what of an engine's answers shows it.
def of_labels(engine: Engine) -> np.ndarray:
    return engine.score(QUERY, ITEMS, LABELS, apply_softmax=True).scores


def of_vocabulary(engine: Engine) -> np.ndarray:
    result = engine.score(QUERY, ITEMS, LABELS, return_token_logprobs=True)
    assert result.token_logprobs is not None
    return result.token_logprobs


def of_drawn_tokens(engine: Engine) -> np.ndarray:
    results = (engine.generate(sequence, 1, temperature=0, ignore_eos=True) for sequence in SEQUENCES)
    return np.array([result.choices[0].token_logprobs[0] for result in results])


def assert_equal_to_transformers(engine: Engine, oracle: PointwiseOracle) -> None:
    expected = oracle.score(SEQUENCES, LABELS, apply_softmax=True)
    assert_scores_close(of_labels(engine), expected, "float32")
    assert_scores_close(of_vocabulary(engine), oracle.label_logprobs(SEQUENCES, LABELS), "float32", "logprob")
    best = np.array([oracle.next_token_logprobs(sequence).max() for sequence in SEQUENCES])
    np.testing.assert_allclose(of_drawn_tokens(engine), best, atol=1e-4)


Plant = Callable[[pytest.MonkeyPatch], None]


def forget_one(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DirectoryCheckpoint, "norms_have_one", True)


def swap_ropes(patch: pytest.MonkeyPatch) -> None:
    own = config.parse_ropes
    patch.setattr(config, "parse_ropes", lambda *given, **options: own(*given, **options)[::-1])


def lengthen_windows(patch: pytest.MonkeyPatch) -> None:
    own = config.sliding_windows
    patch.setattr(config, "sliding_windows", lambda *given: [window and window + 1 for window in own(*given)])


def forget_cap_of_attention(patch: pytest.MonkeyPatch) -> None:
    own = step.segment_attention
    patch.setattr(step, "segment_attention", lambda *given, cap, **options: own(*given, **options))


def forget_cap(module: ModuleType, ndim: int) -> Plant:
    """Forget the cap of arrays of logits with so many dimensions."""
    own = module.capped
    return lambda patch: patch.setattr(
        module, "capped", lambda values, cap: values if values.ndim == ndim else own(values, cap)
    )


FAULTS: dict[str, tuple[str, Plant]] = {
    "norms without the one": ("gemma3", forget_one),
    "the RoPE of the other kind": ("gemma3", swap_ropes),
    "windows longer by one": ("gemma2", lengthen_windows),
    "no cap of attention": ("gemma2", forget_cap_of_attention),
    "no cap of labels": ("gemma2", forget_cap(head, 1)),
    "no cap of streamed logits": ("gemma2", forget_cap(head, 2)),
    "no cap of drawn tokens": ("gemma2", forget_cap(sampling, 2)),
}
PER_COMMIT = ("no cap of streamed logits", "the RoPE of the other kind")


@pytest.mark.parametrize(
    "fault", [pytest.param(each, marks=() if each in PER_COMMIT else pytest.mark.full) for each in FAULTS]
)
def test_what_makes_a_gemma_is_noticed_when_it_is_forgotten(
    fault: str,
    checkpoint_factory: Callable[..., Path],
    oracle_factory: Callable[..., PointwiseOracle],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    family, plant = FAULTS[fault]
    path = checkpoint_factory(family)
    oracle = oracle_factory(path, "float32")
    with engine_of(path) as engine:
        assert_equal_to_transformers(engine, oracle)
    plant(monkeypatch)
    with engine_of(path) as engine, pytest.raises(AssertionError):
        assert_equal_to_transformers(engine, oracle)


@NEEDS_NATIVE
def test_a_cap_that_the_native_log_sum_exp_forgets_is_noticed(
    checkpoint_factory: Callable[..., Path],
    oracle_factory: Callable[..., PointwiseOracle],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = checkpoint_factory("gemma2")
    expected = oracle_factory(path, "bfloat16").label_logprobs(SEQUENCES, LABELS)
    with engine_of(path, dtype="bfloat16") as engine:
        assert_scores_close(of_vocabulary(engine), expected, "bfloat16", "logprob")
    whole = calls.log_sum_exp
    monkeypatch.setattr(calls, "log_sum_exp", lambda hidden, head, cap: whole(hidden, head))
    with engine_of(path, dtype="bfloat16") as engine, pytest.raises(AssertionError):
        assert_scores_close(of_vocabulary(engine), expected, "bfloat16", "logprob")


def respelled(name: str, spelling: str) -> str:
    part = name.removeprefix("model.").replace("language_model.model.", "language_model.")
    return f"model.{part}" if spelling == "new" else part.replace("language_model.", "language_model.model.")


@pytest.mark.parametrize("spelling", ["old", pytest.param("new", marks=pytest.mark.full)])
def test_the_text_of_a_model_that_also_reads_images(
    spelling: str, tmp_path: Path, checkpoint_factory: Callable[..., Path], oracle_factory: Callable
) -> None:
    """Both spellings of its tensors' names; what belongs to the tower is left out."""
    text = checkpoint_factory("gemma3")
    path = larger_checkpoint(tmp_path / "whole", text)
    tensors = load_file(path / "model.safetensors")
    save_file({respelled(name, spelling): tensor for name, tensor in tensors.items()}, path / "model.safetensors")
    assert any("vision_tower" in name for name in tensors)
    with engine_of(path) as engine:
        assert_equal_to_transformers(engine, oracle_factory(text, "float32"))


@pytest.mark.full
def test_a_classifier_of_a_model_that_also_reads_images(
    tmp_path: Path, checkpoint_factory: Callable[..., Path], oracle_factory: Callable
) -> None:
    path = larger_checkpoint(tmp_path / "whole", checkpoint_factory("gemma3"))
    with_classes(path, "Gemma3ForSequenceClassification", ("no", "yes", "perhaps"))
    with engine_of(path) as engine:
        ours = engine.classify(SEQUENCES, use_activation=False).probabilities
    np.testing.assert_allclose(ours, oracle_factory(path, "float32").head_values(SEQUENCES), atol=1e-4, rtol=0)
