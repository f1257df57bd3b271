"""An engine whose products are in int8: near float32, still isolated, smaller, and cut over devices."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from mis_core import Engine
from mis_testing import tiny_checkpoint
from mis_testing.bits import assert_bits_equal
from mis_testing.devices import environment_with_devices
from mis_testing.options import SMALL_ENGINE

PROGRAM = Path(__file__).parent.parent / "support" / "many_devices.py"
QUERY, LABELS = np.random.default_rng(0).integers(5, 90, 150).tolist(), [7, 30, 55]
ITEMS = [np.random.default_rng(n).integers(5, 90, 1 + 7 * n).tolist() for n in range(9)]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("int8") / "model", family="qwen2")


@pytest.fixture(scope="module")
def engine(path: Path) -> Iterator[Engine]:
    with Engine.from_pretrained(path, progress=False, quantization="int8", **SMALL_ENGINE) as engine:
        yield engine


def softmaxes(engine: Engine, items: list[list[int]] = ITEMS) -> np.ndarray:
    return np.asarray(engine.score(QUERY, items, LABELS, apply_softmax=True).scores)


def test_scores_are_near_those_of_float32_and_not_the_same(path: Path, engine: Engine) -> None:
    with Engine.from_pretrained(path, progress=False, **SMALL_ENGINE) as exact:
        wanted = softmaxes(exact)
    apart = np.abs(softmaxes(engine) - wanted)
    assert 1e-4 < apart.max() < 0.05
    assert apart.mean() < 0.01


def test_an_item_scores_the_same_bits_alone_and_among_others(engine: Engine) -> None:
    together = softmaxes(engine)
    engine.flush_cache()
    for number in (0, 3, 8):
        assert_bits_equal(softmaxes(engine, [ITEMS[number]]), together[number : number + 1])


def test_only_products_of_layers_are_quantised(engine: Engine) -> None:
    types = {name: array.dtype for name, array in engine.memory().items()}
    integers = {name.split("/")[1] for name, dtype in types.items() if dtype in {"int8", "uint8"}}
    assert integers == {"qkv", "out", "gate_up", "down"}
    assert types["embedding"] == types["layers/qkv/scales"] == types["layers/qkv_bias"] == "float32"
    assert engine.summary["quantization"] == "int8"


@pytest.mark.full
def test_a_model_cut_over_devices_agrees_with_one(tmp_path: Path) -> None:
    """Rows that are cut are quantised by each device for itself, so scores differ by what quantising changes."""
    shape = {"hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2}
    path = tiny_checkpoint(tmp_path / "model", family="llama", num_hidden_layers=2, **shape)
    command = [sys.executable, str(PROGRAM), str(path), "float32", json.dumps([(1, 1), (1, 2)]), "int8"]
    done = subprocess.run(command, env=environment_with_devices(2), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    alone, cut = json.loads(done.stdout.strip().splitlines()[-1]).values()
    assert cut["share_of_weights"] < 0.7
    apart = np.abs(np.subtract(cut["softmax"], alone["softmax"]))
    assert 0 < apart.max() < 0.05
