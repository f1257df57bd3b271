"""The oracle: plain, independent of the other sequences, and sensitive to the faults it must catch."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from mis_testing import tiny_checkpoint
from mis_testing.bits import assert_bits_equal
from mis_testing.oracle import PointwiseOracle, softmax_over_labels
from mis_testing.tolerances import assert_scores_close

pytest.importorskip("torch")

LABELS = [271, 269, 276]
QUERY = np.random.default_rng(0).integers(0, 900, 40).tolist()
ITEMS = [[7, 8, 9], [450], [3, 200, 5, 611, 7]]
SEQUENCES = [QUERY + item for item in ITEMS]


@pytest.fixture(scope="module")
def oracle(checkpoint: Path, oracle_factory: Callable) -> PointwiseOracle:
    return oracle_factory(checkpoint)


def test_probabilities_of_the_whole_vocabulary_sum_to_one(oracle: PointwiseOracle) -> None:
    assert np.isclose(np.exp(oracle.next_token_logprobs(QUERY)).sum(), 1, atol=1e-5)


def test_scores_are_derived_from_logprobs(oracle: PointwiseOracle) -> None:
    logprobs = oracle.label_logprobs(SEQUENCES, LABELS)
    assert logprobs.shape == (3, 3)
    np.testing.assert_allclose(oracle.score(SEQUENCES, LABELS), np.exp(logprobs))
    softmax = oracle.score(SEQUENCES, LABELS, apply_softmax=True, temperature=2.0)
    np.testing.assert_allclose(softmax, softmax_over_labels(logprobs, 2.0))
    np.testing.assert_allclose(softmax.sum(axis=1), 1, rtol=1e-6)


def test_a_sequence_is_scored_alone(oracle: PointwiseOracle) -> None:
    together = oracle.label_logprobs(SEQUENCES, LABELS)
    assert_bits_equal(oracle.label_logprobs(SEQUENCES[1:2], LABELS)[0], together[1])


def test_labels_may_differ_by_sequence(oracle: PointwiseOracle) -> None:
    mixed = oracle.label_logprobs(SEQUENCES, [[271], [269], [276]])
    assert_bits_equal(mixed[:, 0], np.diagonal(oracle.label_logprobs(SEQUENCES, LABELS)))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("fault", ["swapped items", "token lost", "position shifted"])
def test_a_planted_fault_exceeds_the_tolerance(
    fault: str, dtype: str, checkpoint: Path, oracle_factory: Callable
) -> None:
    oracle = oracle_factory(checkpoint, dtype)
    sequences, positions = SEQUENCES, [list(range(len(sequence))) for sequence in SEQUENCES]
    if fault == "swapped items":
        sequences, positions = SEQUENCES[::-1], positions[::-1]
    elif fault == "token lost":
        sequences, positions = [sequence[1:] for sequence in SEQUENCES], None
    else:
        # Of the items against the query; shifting everything changes nothing, by design of RoPE.
        positions = [[*range(len(QUERY)), *range(len(QUERY) + 1, len(sequence) + 1)] for sequence in SEQUENCES]
    expected = oracle.score(SEQUENCES, LABELS, apply_softmax=True)
    faulty = oracle.score(sequences, LABELS, apply_softmax=True, position_ids=positions)
    with pytest.raises(AssertionError, match="label softmax"):
        assert_scores_close(faulty, expected, dtype)


def test_shifting_every_position_changes_nothing_that_counts(oracle: PointwiseOracle) -> None:
    shifted = [list(range(1, len(sequence) + 1)) for sequence in SEQUENCES]
    expected = oracle.score(SEQUENCES, LABELS)
    assert_scores_close(oracle.score(SEQUENCES, LABELS, position_ids=shifted), expected, "float32", "probability")


def test_both_attention_implementations_agree(checkpoint: Path, oracle_factory: Callable) -> None:
    eager, sdpa = (oracle_factory(checkpoint, "float32", name).score(SEQUENCES, LABELS) for name in ("eager", "sdpa"))
    assert_scores_close(sdpa, eager, "float32", "probability")


def test_bfloat16_stays_within_its_own_tolerance_of_float32(checkpoint: Path, oracle_factory: Callable) -> None:
    half, full = (oracle_factory(checkpoint, dtype).score(SEQUENCES, LABELS) for dtype in ("bfloat16", "float32"))
    assert_scores_close(half, full, "bfloat16", "probability")


def test_an_empty_sequence_is_refused(oracle: PointwiseOracle) -> None:
    with pytest.raises(ValueError, match="at least one token"):
        oracle.label_logprobs([[]], LABELS)


@pytest.mark.parametrize("fault", ["missing", "unexpected", "misshapen"])
def test_a_checkpoint_that_does_not_fit_is_refused(fault: str, tmp_path: Path) -> None:
    path = tiny_checkpoint(tmp_path, "qwen2", dtype="float32")
    tensors = load_file(path / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.weight"
    if fault == "missing":
        del tensors[name]
    elif fault == "unexpected":
        name = "model.layers.1.mlp.side_proj.weight"
        tensors[name] = np.zeros(3, np.float32)
    else:
        tensors[name] = tensors[name][:5]
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises((ValueError, RuntimeError), match=name if fault != "misshapen" else "mismatch"):
        PointwiseOracle(path)


def test_config_decides_the_model(tmp_path: Path) -> None:
    path = tiny_checkpoint(tmp_path)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 1}))
    with pytest.raises(ValueError, match=r"layers\.1\."):
        PointwiseOracle(path)


def test_without_pytorch_the_error_says_what_to_install(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match=r"pip install 'mis-testing\[oracle\]'"):
        PointwiseOracle(checkpoint)
