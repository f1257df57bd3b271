"""Settings of published models, whole, with the keys that trainers and hubs add; `published.json` names the sources."""

import dataclasses
import json
import logging
import math
import re
from pathlib import Path
from typing import Any

import pytest

from mis_core.errors import ModelError
from mis_core.models.config import ModelConfig, read_model_config
from mis_core.models.families import FAMILIES
from mis_core.models.layers import rope_kinds
from mis_core.models.published import PUBLISHED as SHAPES
from mis_core.models.rope import frequencies

PUBLISHED: dict[str, dict[str, Any]] = json.loads((Path(__file__).parent / "published.json").read_text())
OF_PARTS_AND_IMAGES = ("partial_rotary_factor", "mrope_section", "mrope_interleaved")
FAMILY_ROW = re.compile(r"\| `(\w+)ForCausalLM` \|")


def read(folder: Path, config: dict[str, Any]) -> ModelConfig:
    (folder / "config.json").write_text(json.dumps(config))
    return read_model_config(folder)


def classifier_of(config: dict[str, Any]) -> str:
    """Return the class of the same family's classifier of sequences."""
    return [*FAMILIES[config["architectures"][0]].with_heads()][1]


def test_every_row_of_the_table_of_models_has_one() -> None:
    page = Path(__file__).parents[4] / "docs/reference/models.md"
    if not page.is_file():
        pytest.skip("needs the repository's docs")
    assert {each["row"] for each in PUBLISHED.values()} == set(FAMILY_ROW.findall(page.read_text()))


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_settings_are_read_as_transformers_reads_them(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from transformers import AutoConfig

    caplog.set_level(logging.INFO)
    ours = read(tmp_path, PUBLISHED[name]["config"])
    assert not caplog.records  # nothing there that nobody knows
    theirs = AutoConfig.from_pretrained(tmp_path)
    assert (ours.vocab_size, ours.embed, ours.mlp) == (
        theirs.vocab_size,
        theirs.hidden_size,
        theirs.intermediate_size,
    )
    heads, kv_heads, head_dim = ours.attention
    assert (len(ours.layers), heads, kv_heads) == (
        theirs.num_hidden_layers,
        theirs.num_attention_heads,
        theirs.num_key_value_heads,
    )
    assert head_dim == (getattr(theirs, "head_dim", None) or ours.embed // heads)
    assert (ours.max_positions, ours.norm_epsilon, ours.tied) == (
        theirs.max_position_embeddings,
        theirs.rms_norm_eps,
        theirs.tie_word_embeddings,
    )
    kinds = getattr(theirs, "layer_types", None) or [""] * len(ours.layers)
    for layer, kind in zip(ours.layers, kinds, strict=True):
        if layer.rope is not None:
            rope = {"rope_theta": layer.rope.theta, "rope_type": layer.rope.kind} | layer.rope.parameters
            expected = theirs.rope_parameters.get(kind, theirs.rope_parameters)
            assert rope == {name: value for name, value in expected.items() if name not in OF_PARTS_AND_IMAGES}
    has_rope = getattr(theirs, "no_rope_layers", [1] * len(ours.layers))
    has_rope = [each == 1 and kind != "linear_attention" for each, kind in zip(has_rope, kinds, strict=True)]
    assert [layer.rope is not None for layer in ours.layers] == has_rope


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_same_model_with_a_head_of_labels_is_a_classifier(name: str, tmp_path: Path) -> None:
    config = PUBLISHED[name]["config"]
    head = {
        "architectures": [classifier_of(config)],
        "id2label": {"0": "no", "1": "yes", "2": "perhaps"},
        "label2id": {"no": 0, "yes": 1, "perhaps": 2},
        "problem_type": "single_label_classification",
    }
    assert read(tmp_path, config | head).head_labels == ("no", "yes", "perhaps")


@pytest.mark.parametrize("name", PUBLISHED)
def test_one_key_that_is_not_understood_refuses_the_whole(name: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"config\.json: is_causal = false is not understood"):
        read(tmp_path, PUBLISHED[name]["config"] | {"is_causal": False})


@pytest.mark.parametrize("name", sorted(PUBLISHED.keys() & SHAPES.keys()))
def test_shapes_compiled_without_a_checkpoint_are_published_ones(name: str, tmp_path: Path) -> None:
    config, shape = read(tmp_path, PUBLISHED[name]["config"]), SHAPES[name]
    for dimension in ("vocab_size", "embed", "mlp", "attention", "norm_epsilon", "tied"):
        assert getattr(config, dimension) == getattr(shape, dimension), dimension
    assert [layer.rope is None for layer in config.layers] == [layer.rope is None for layer in shape.layers]


WRONG = (None, True, "text", -1, 0, 2**70, 10**400, 1.5, math.nan, math.inf, [], [None], [[]], {}, {"a": None})
ADDED = ("rope_parameters", "rope_scaling", "problem_type", "partial_rotary_factor", "layer_types", "no_rope_layers")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "llama-3.2-1b" else pytest.mark.full) for name in PUBLISHED]
)
def test_values_of_any_type_are_served_or_refused(name: str, tmp_path: Path) -> None:
    config = PUBLISHED[name]["config"]
    small = config | {"num_hidden_layers": 4, "layer_types": None, "no_rope_layers": None}
    small["architectures"] = [classifier_of(config)]
    changes = [{key: value} for key in {*small, *ADDED, "id2label"} - {"num_hidden_layers"} for value in WRONG]
    for kind in ("linear", "llama3", "yarn"):
        scaling = {"rope_type": kind, "factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
        scaling = {key: value for key, value in scaling.items() if kind == "llama3" or "freq" not in key}
        keys = {*scaling, "original_max_position_embeddings", "rope_theta", "attention_factor", "type"}
        changes += [{"rope_scaling": scaling | {key: value}} for key in keys for value in WRONG]
    outcomes = [outcome(tmp_path, small | change) for change in changes]
    assert len({type(each) for each in outcomes}) == 2  # both happen
    assert max(len(each) for each in outcomes if isinstance(each, str)) < 600


def outcome(folder: Path, config: dict[str, Any]) -> ModelConfig | str:
    """Return what is read, or the sentence that refuses it."""
    try:
        model = read(folder, config)
        for rope in filter(None, rope_kinds(model.layers)):
            frequencies(dataclasses.replace(rope, head_dim=64))  # what the tensors show limits it
    except ModelError as error:
        return error.message
    return model
