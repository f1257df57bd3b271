"""Heads over devices: what is compiled without a device is what the engine runs on some."""

import dataclasses
import itertools
import json
from pathlib import Path

import pytest

from mis_core.errors import ConfigError
from mis_core.models.config import read_model_config
from mis_core.models.layers import Layer
from mis_core.models.parallel import spread_heads
from mis_core.models.published import PUBLISHED
from mis_kernels.heads import HEAD_SHAPES, TENSOR_PARALLEL, HeadShape, device_head_shapes
from mis_testing.checkpoint import config_json
from mis_testing.published import SHAPES
from mis_testing.shapes import CheckpointShape


@pytest.mark.parametrize(
    ("model", "devices"),
    [
        (model, devices)
        for model, devices in itertools.product(PUBLISHED, TENSOR_PARALLEL)
        if HEAD_SHAPES[model].divides(devices) and (devices == 1 or PUBLISHED[model].recurrence is None)
    ],
)
def test_the_heads_that_are_compiled_for_devices_are_the_engines(model: str, devices: int) -> None:
    engine = spread_heads(PUBLISHED[model], devices)
    heads, kv_heads, head_dim = engine.attention
    assert {layer.heads for layer in engine.layers} == {engine.attention}
    assert kv_heads % devices == heads % devices == 0
    on_device = (heads // devices, kv_heads // devices, head_dim)
    assert HEAD_SHAPES[model].on_device(devices) == on_device
    assert on_device in device_head_shapes()
    assert HEAD_SHAPES[model].spread(devices) == engine.attention


def test_the_catalogue_of_heads_has_every_published_model() -> None:
    assert HEAD_SHAPES.keys() == PUBLISHED.keys()


@pytest.mark.parametrize("model", SHAPES)
def test_random_checkpoints_have_the_published_shapes(model: str, tmp_path: Path) -> None:
    shape = CheckpointShape.of(**SHAPES[model])
    assert shape.vocab_size is not None
    (tmp_path / "config.json").write_text(json.dumps(config_json(shape, shape.vocab_size)))
    assert read_model_config(tmp_path) == PUBLISHED[model]


def test_devices_and_kv_heads_must_divide_each_other() -> None:
    model = dataclasses.replace(PUBLISHED["qwen3-0.6b"], layers=(Layer(HeadShape(24, 12, 128), None),))
    with pytest.raises(ConfigError, match="tp_size 16 and the model's 12 KV heads"):
        spread_heads(model, 16)
