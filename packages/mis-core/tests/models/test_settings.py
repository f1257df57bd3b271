"""Settings that change what transformers computes are understood or refused by name; others are served."""

import ast
import dataclasses
import json
import logging
from importlib.util import find_spec
from pathlib import Path

import pytest

from mis_core.errors import ModelError
from mis_core.models.config import ModelConfig, read_model_config
from mis_core.models.families import FAMILIES
from mis_core.models.settings import HARMLESS, READ, UNDERSTOOD

BASE = {
    "architectures": ["Qwen3ForCausalLM"],
    "vocab_size": 1000,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 512,
}
NAMES = ("Qwen3", "Qwen2", "Llama", "Mistral", "SmolLM3")


def read(tmp_path: Path, *, ignore_unknown: bool = False, **changes: object) -> ModelConfig:
    (tmp_path / "config.json").write_text(json.dumps(BASE | changes))
    return read_model_config(tmp_path, ignore_unknown=ignore_unknown)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"is_causal": False}, "is_causal = false is not understood, .*--ignore-unknown-settings"),
        ({"is_causal": None}, "is_causal = null is not understood"),
        ({"is_encoder_decoder": True}, "is_encoder_decoder = true"),
        ({"per_layer_config": {"0": {"num_attention_heads": 2}}}, "per_layer_config"),
        ({"attribute_map": {"num_hidden_layers": "depth"}, "depth": 1}, "attribute_map"),
        ({"text_config": {"hidden_size": 32}}, "text_config"),
        ({"architectures": ["LlamaForCausalLM"], "sliding_window": 64}, "sliding_window = 64"),
        ({"to_dict": 5}, "to_dict = 5"),  # in the place of a method
    ],
)
def test_a_setting_that_is_not_understood_is_refused_by_name(tmp_path: Path, changes: dict, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        read(tmp_path, **changes)


@pytest.mark.parametrize("name", READ)
def test_the_value_that_changes_nothing_is_served(tmp_path: Path, name: str) -> None:
    assert read(tmp_path, **{name: READ[name]}) == read(tmp_path)


def test_a_setting_new_in_transformers_must_have_its_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import transformers

    assert read(tmp_path, logit_softcap=30.0) == read(tmp_path)  # as yet nothing reads it
    monkeypatch.setattr(transformers.Qwen3Config, "logit_softcap", 50.0, raising=False)
    assert read(tmp_path, logit_softcap=50.0) == read(tmp_path)
    with pytest.raises(ModelError, match=r"logit_softcap = 30\.0 is not understood"):
        read(tmp_path, logit_softcap=30.0)


def test_asked_to_it_ignores_such_a_setting_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    scaling = {"rope_type": "linear", "factor": 2.0}
    changes = {"is_causal": False, "rope_scaling": scaling | {"high_freq_factor": 4.0}}
    assert read(tmp_path, ignore_unknown=True, **changes) == read(tmp_path, rope_scaling=scaling)
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
    assert "is_causal = false is not understood and ignored" in caplog.text
    assert "rope_scaling.high_freq_factor of type linear = 4.0 is not understood and ignored" in caplog.text


def test_what_is_understood_is_refused_all_the_same(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match='hidden_act = "gelu"'):
        read(tmp_path, ignore_unknown=True, hidden_act="gelu")


def test_keys_that_nothing_reads_are_one_short_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    notes = {"a_trainers_note": {"lr": 1e-4}, "\x1b[2J": 1} | {f"note_{number}": number for number in range(1000)}
    assert read(tmp_path, **notes) == read(tmp_path)
    (record,) = caplog.records
    assert record.levelno == logging.INFO
    assert "nothing reads: a_trainers_note, " in record.getMessage()
    assert record.getMessage().isprintable()
    assert len(record.getMessage()) < 300


@pytest.mark.parametrize("name", NAMES)
def test_every_setting_that_transformers_declares_is_in_a_list(name: str) -> None:
    import transformers

    declared = {field.name for field in dataclasses.fields(getattr(transformers, f"{name}Config"))}
    assert declared - UNDERSTOOD - HARMLESS - set(READ) - set(FAMILIES[f"{name}ForCausalLM"].settings) == set()


def test_settings_of_generation_are_harmless() -> None:
    from transformers import GenerationConfig

    assert set(GenerationConfig._get_default_generation_params()) - HARMLESS == set()


def test_the_lists_are_apart() -> None:
    own = {name for family in FAMILIES.values() for name in family.settings}
    assert UNDERSTOOD & HARMLESS == UNDERSTOOD & set(READ) == HARMLESS & set(READ) == UNDERSTOOD & own == set()


TRANSFORMERS = Path((find_spec("transformers").submodule_search_locations or [""])[0])
SHARED = (
    "masking_utils.py",
    "modeling_utils.py",
    "modeling_rope_utils.py",
    "configuration_utils.py",
    "modeling_layers.py",
    "cache_utils.py",
    "integrations/heterogeneity/configuration_utils.py",
)
CONFIGURATIONS = {"config", "self.config", "text_config", "effective_config", "layer_config"}


def looked_up(source: str) -> set[str]:
    """Return the names that code looks up in a configuration, whether or not its class declares them.

    Those are `getattr` and `hasattr` of a name, `self` in a configuration's own class, and what `__post_init__` takes
    from the keys that are no fields.
    """
    found: set[str] = set()
    for outer in ast.walk(ast.parse(source)):
        owners = set(CONFIGURATIONS)
        if isinstance(outer, ast.ClassDef):
            owners |= {"self"} if "Config" in outer.name else set()
        elif not isinstance(outer, ast.Module):
            continue
        for node in ast.walk(outer):
            match node:
                case ast.Call(
                    func=ast.Name(id="getattr" | "hasattr"), args=[owner, ast.Constant(value=str(name)), *_]
                ) if ast.unparse(owner) in owners:
                    found.add(name)
                case ast.FunctionDef(name="__post_init__" | "convert_rope_params_to_dict"):
                    found |= popped(node)
    return found


def popped(function: ast.FunctionDef) -> set[str]:
    """Return the names that a function takes from its `kwargs`."""
    found = set()
    for node in ast.walk(function):
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="kwargs"), attr="get" | "pop"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                found.add(name)
    return found


def attributes(source: str) -> set[str]:
    """Return the names of the attributes of configurations that code reads."""
    return {
        node.attr
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in CONFIGURATIONS
    }


def methods() -> set[str]:
    from transformers import PreTrainedConfig

    return {name for name in dir(PreTrainedConfig) if callable(getattr(PreTrainedConfig, name))}


@pytest.mark.parametrize("name", NAMES)
def test_undeclared_settings_that_transformers_reads_are_listed(name: str) -> None:
    module = TRANSFORMERS / "models" / name.lower()
    family = [(module / f"{kind}_{name.lower()}.py").read_text() for kind in ("modeling", "configuration")]
    shared = [(TRANSFORMERS / file).read_text() for file in SHARED]
    read = set().union(*map(looked_up, family + shared), *map(attributes, family))
    assert {"is_causal", "transformers_weights", "head_dim", "per_layer_config", "rms_norm_eps"} <= read
    own = set(FAMILIES[f"{name}ForCausalLM"].settings)
    assert read - UNDERSTOOD - HARMLESS - set(READ) - own - methods() == set()


def test_a_new_read_of_transformers_would_be_found() -> None:
    planted = "def mask(config):\n    cap = getattr(config, 'logit_softcap', None)\n    return config.window_of_heads"
    assert (looked_up(planted), attributes(planted)) == ({"logit_softcap"}, {"window_of_heads"})
    assert looked_up("class NewConfig:\n    def size(self):\n        return hasattr(self, 'width')") == {"width"}
