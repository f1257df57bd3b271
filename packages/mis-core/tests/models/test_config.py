"""Reading `config.json`: families, both spellings of RoPE, and what is refused by name."""

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mis_core.checkpoints.text_settings import WITHIN
from mis_core.errors import ModelError
from mis_core.models.config import ModelConfig, read_model_config
from mis_core.models.families import BARE, FAMILIES
from mis_core.models.layers import rope_kinds, windows_of
from mis_core.models.rope import RopeConfig

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
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "hidden_act": "silu",
}
CLASSIFIER: dict[str, object] = {"architectures": ["Qwen3ForSequenceClassification"]}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}
LINEAR: dict[str, object] = {"rope_type": "linear", "factor": 2.0}


def read(tmp_path: Path, **changes: object) -> ModelConfig:
    (tmp_path / "config.json").write_text(json.dumps(BASE | changes))
    return read_model_config(tmp_path)


def rope_of(config: ModelConfig) -> RopeConfig:
    """Return the RoPE of the layers that have some."""
    rope, *_ = rope_kinds(config.layers)
    assert rope is not None
    return rope


def test_old_and_new_rope_spellings_mean_the_same(tmp_path: Path) -> None:
    old = read(tmp_path, rope_theta=5e5, rope_scaling=LLAMA3)
    new = read(tmp_path, rope_parameters={**LLAMA3, "rope_theta": 5e5})
    assert old == new
    assert (rope_of(old).kind, rope_of(old).theta) == ("llama3", 5e5)


def test_the_oldest_spelling_calls_the_type_type(tmp_path: Path) -> None:
    config = read(tmp_path, rope_theta=1e4, rope_scaling={"type": "linear", "factor": 2.0})
    assert (rope_of(config).kind, rope_of(config).parameters) == ("linear", {"factor": 2.0})


def test_qwen2_has_biases_and_head_dim_from_the_hidden_size(tmp_path: Path) -> None:
    config = read(tmp_path, architectures=["Qwen2ForCausalLM"], head_dim=None)
    assert config.qkv_bias
    assert not config.attention_bias
    assert not config.family.qk_norm
    assert config.attention.head_dim == 16


def test_biases_are_those_that_the_family_has_settings_for(tmp_path: Path) -> None:
    qwen3 = read(tmp_path, attention_bias=True)
    assert (qwen3.qkv_bias, qwen3.attention_bias, qwen3.mlp_bias) == (True, True, False)
    llama = read(tmp_path, architectures=["LlamaForCausalLM"], attention_bias=False, mlp_bias=True)
    assert (llama.qkv_bias, llama.attention_bias, llama.mlp_bias) == (False, False, True)


SMOLLM3: dict[str, object] = {"architectures": ["SmolLM3ForCausalLM"], "num_hidden_layers": 6}
MINISTRAL: dict[str, object] = {"architectures": ["MinistralForCausalLM"]}
MISTRAL: dict[str, object] = {"architectures": ["MistralForCausalLM"], "sliding_window": None}
GEMMA2: dict[str, object] = {"architectures": ["Gemma2ForCausalLM"]}
GEMMA3: dict[str, object] = {"architectures": ["Gemma3ForCausalLM"], "num_hidden_layers": 6}
GEMMA3_4B: dict[str, object] = {  # as published: silent where transformers has a default
    "architectures": ["Gemma3ForConditionalGeneration"],
    "model_type": "gemma3",
    "mm_tokens_per_image": 256,
    "text_config": {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    },
    "vision_config": {"model_type": "siglip_vision_model"},
}


@pytest.mark.parametrize(
    ("changes", "layers"),
    [
        ({}, (3,)),  # every fourth
        ({"no_rope_layer_interval": 2}, (1, 3, 5)),
        ({"no_rope_layers": [1, 1, 1, 1, 1, 1]}, ()),
        ({"no_rope_layers": [0] * 6}, tuple(range(6))),
        ({"no_rope_layers": [0, 1, 1, 0, 1, 1, 0, 0], "no_rope_layer_interval": 1}, (0, 3)),
    ],
)
def test_layers_without_rope_are_those_of_transformers(tmp_path: Path, changes: dict, layers: tuple[int, ...]) -> None:
    from transformers import SmolLM3Config

    kinds = rope_kinds(read(tmp_path, **SMOLLM3, **changes).layers)
    assert tuple(kinds.get(None, [])) == layers
    assert len(kinds) == len({layer in layers for layer in range(6)})
    has_rope = SmolLM3Config.from_pretrained(tmp_path).no_rope_layers
    assert tuple(layer for layer in range(6) if not has_rope[layer]) == layers


def test_only_smollm3_reads_which_layers_have_no_rope(tmp_path: Path) -> None:
    llama = read(tmp_path, architectures=["LlamaForCausalLM"], no_rope_layers=[0, 0], no_rope_layer_interval=1)
    assert rope_kinds(llama.layers) == {rope_of(llama): [0, 1]}


@pytest.mark.parametrize("name", ["Qwen2", "Qwen3", "Llama", "Mistral", "Ministral", "SmolLM3", "Gemma2"])
def test_missing_config_keys_default_as_in_transformers(tmp_path: Path, name: str) -> None:
    import transformers

    silent = {"tie_word_embeddings", "max_position_embeddings", "rms_norm_eps"}
    window = 4096 if name == "Gemma2" else None
    said = {key: value for key, value in BASE.items() if key not in silent} | {"sliding_window": window}
    (tmp_path / "config.json").write_text(json.dumps(said | {"architectures": [f"{name}ForCausalLM"]}))
    ours, theirs = read_model_config(tmp_path), getattr(transformers, f"{name}Config").from_pretrained(tmp_path)
    assert (ours.tied, ours.max_positions) == (theirs.tie_word_embeddings, theirs.max_position_embeddings)
    assert (ours.norm_epsilon, rope_of(ours).theta) == (theirs.rms_norm_eps, theirs.rope_parameters["rope_theta"])


def test_the_error_for_an_unknown_architecture_lists_families(tmp_path: Path) -> None:
    import transformers

    with pytest.raises(ModelError) as caught:
        read(tmp_path, architectures=["MambaForCausalLM"])
    families, within = caught.value.message.split("known: ")[1].rstrip(".").split("; the text of ")
    names = families.split(", each as ForCausalLM")[0].split(", ")
    assert {f"{name}ForCausalLM" for name in names} == {name for name in FAMILIES if name.endswith("CausalLM")}
    assert within == ", ".join(WITHIN)
    missing = [name for name in [*FAMILIES, *BARE, *WITHIN] if not hasattr(transformers, name)]
    assert not missing
    classes = {getattr(transformers, name).config_class.__name__ for name in FAMILIES}
    assert classes == {family.config_class for family in FAMILIES.values()}


def test_gemma_sizes_missing_from_a_config_match_transformers(tmp_path: Path) -> None:
    from transformers import Gemma3Config

    (tmp_path / "config.json").write_text(json.dumps(GEMMA3_4B))
    ours, theirs = read_model_config(tmp_path), Gemma3Config.from_pretrained(tmp_path).text_config
    assert (ours.attention.heads, ours.attention.kv_heads) == (theirs.num_attention_heads, theirs.num_key_value_heads)
    assert (ours.attention.head_dim, ours.vocab_size) == (theirs.head_dim, theirs.vocab_size)
    assert (ours.tied, ours.longest, ours.norm_epsilon) == (True, theirs.max_position_embeddings, theirs.rms_norm_eps)
    assert (ours.attention_scale, ours.embedding_scale) == (theirs.query_pre_attn_scalar**-0.5, 2560**0.5)
    assert (ours.attention_cap, ours.logit_cap, ours.is_within) == (None, None, True)
    slides = [kind == "sliding_attention" for kind in theirs.layer_types]
    assert [layer.window for layer in ours.layers] == [1024 if each else None for each in slides]
    for layer, kind in zip(ours.layers, theirs.layer_types, strict=True):
        rope = theirs.rope_parameters[kind]
        assert layer.rope is not None
        assert (layer.rope.kind, layer.rope.theta) == (rope["rope_type"], rope["rope_theta"])
        assert layer.rope.parameters.get("factor") == rope.get("factor")


def test_caps_and_scales_are_those_of_transformers(tmp_path: Path) -> None:
    from transformers import Gemma2Config

    ours = read(tmp_path, **GEMMA2)
    theirs = Gemma2Config.from_pretrained(tmp_path)
    assert (ours.attention_cap, ours.logit_cap) == (theirs.attn_logit_softcapping, theirs.final_logit_softcapping)
    assert ours.attention_scale == theirs.query_pre_attn_scalar**-0.5
    none = {"attn_logit_softcapping": None, "final_logit_softcapping": None}
    assert (read(tmp_path, **GEMMA2, **none).attention_cap, read(tmp_path, **GEMMA2, **none).logit_cap) == (None, None)
    # transformers' Gemma 3 caps the head's logits alone, and its classifier's never.
    both = {"attn_logit_softcapping": 7.0, "final_logit_softcapping": 5.0}
    assert (read(tmp_path, **GEMMA3, **both).attention_cap, read(tmp_path, **GEMMA3, **both).logit_cap) == (None, 5.0)
    classifier = GEMMA2 | {"architectures": ["Gemma2ForSequenceClassification"]}
    assert (read(tmp_path, **classifier).attention_cap, read(tmp_path, **classifier).logit_cap) == (50.0, None)


@pytest.mark.parametrize(
    "spelling",
    [
        {},
        {"rope_theta": 5e5, "rope_local_base_freq": 7e3},
        {"rope_scaling": LINEAR},
        {"rope_parameters": {"full_attention": LINEAR | {"rope_theta": 3e5}, "sliding_attention": {"rope_theta": 9e3}}},
        {"rope_parameters": {"full_attention": {"rope_type": "default"}}, "rope_local_base_freq": 7e3},
    ],
)
def test_each_kind_of_layer_has_its_rope(tmp_path: Path, spelling: dict) -> None:
    from transformers import Gemma3TextConfig

    ours, theirs = read(tmp_path, **GEMMA3, **spelling), Gemma3TextConfig.from_pretrained(tmp_path)
    for layer, kind in zip(ours.layers, theirs.layer_types, strict=True):
        expected = theirs.rope_parameters[kind]
        assert layer.rope is not None
        assert (layer.rope.theta, layer.rope.kind) == (expected["rope_theta"], expected.get("rope_type", "default"))
        assert layer.rope.parameters.get("factor") == expected.get("factor")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["MambaForCausalLM"]}, "architecture MambaForCausalLM is not supported; known: Qwen3"),
        ({"architectures": None}, r"architecture \(none\)"),
        ({"hidden_act": "gelu"}, 'hidden_act = "gelu" is not supported'),
        ({"attention_bias": "yes"}, 'attention_bias must be true or false, not "yes"'),
        ({"tie_word_embeddings": "false"}, 'tie_word_embeddings must be true or false, not "false"'),
        ({"model_type": "smollm3"}, 'model_type = "smollm3" is not that of Qwen3ForCausalLM, which is qwen3'),
        ({"use_sliding_window": True, "max_window_layers": "all"}, 'max_window_layers must be an integer, not "all"'),
        ({"use_sliding_window": 1}, "use_sliding_window must be true or false, not 1"),
        (MISTRAL | {"sliding_window": 0}, "sliding_window must be a positive integer or null, not 0"),
        (
            MISTRAL | {"sliding_window": 64, "layer_types": ["full_attention"] * 2},
            "layer_types differs from what this",
        ),
        ({"layer_types": ["full_attention"]}, "layer_types names 1 layers, but num_hidden_layers is 2"),
        (MINISTRAL | {"layer_types": ["sliding_attention"] * 2, "sliding_window": None}, "but sliding_window gives no"),
        (SMOLLM3 | {"layer_types": ["sliding_attention"] * 6, "sliding_window": 64}, "layer 0 slides, but"),
        (SMOLLM3 | {"no_rope_layers": [1, 0, 1]}, "no_rope_layers must list 0 or 1 for each of 6 layers"),
        (SMOLLM3 | {"no_rope_layers": [2] * 6}, "no_rope_layers must list 0 or 1"),
        (SMOLLM3 | {"no_rope_layers": 4}, "no_rope_layers must list 0 or 1"),
        (SMOLLM3 | {"no_rope_layer_interval": 0}, "no_rope_layer_interval must be a positive integer"),
        ({"architectures": "Qwen3ForCausalLM"}, 'architectures must be a list of names, not "Qwen3ForCausalLM"'),
        ({"head_dim": 33}, "head_dim must be even"),
        ({"rms_norm_eps": None}, "rms_norm_eps must be a positive number, not null"),
        ({"rms_norm_eps": "tiny"}, "rms_norm_eps must be a positive number"),
        ({"rope_scaling": "linear"}, 'rope_scaling must be an object, not "linear"'),
        *[
            ({"rope_scaling": {"type": "linear", "factor": factor}}, "factor must be a positive number")
            for factor in (0, None, "2", True, -1)
        ],
        ({"rope_scaling": {"type": "yarn", "factor": 2.0, "beta_fast": "32"}}, "beta_fast must be a positive number"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": {"rope_type": "default"}}, "differ"),
        (
            {"rope_scaling": {"type": "yarn", "factor": 2.0}, "original_max_position_embeddings": 64},
            "original_max_position_embeddings differs from rope_scaling",
        ),
        ({"quantization_config": {"bits": 4}}, "quantization_config: .* take the model's original weights"),
        (
            {"layer_types": ["full_attention", "sliding_attention"]},
            "layer 1 slides, but use_sliding_window is not",
        ),
        ({"layer_types": ["full_attention", "linear_attention"]}, "layer_types must be a list of full_attention and"),
        ({"layer_types": 2}, "layer_types must be a list"),
        ({"num_key_value_heads": 3}, "not a multiple of num_key_value_heads"),
        ({"vocab_size": "many"}, 'vocab_size must be a positive integer, not "many"'),
        ({"num_hidden_layers": None}, "num_hidden_layers must be a positive integer"),
        ({"rope_scaling": {"rope_type": "longrope"}}, 'RoPE type "longrope" is not supported'),
        ({"rope_scaling": {"rope_type": "linear"}}, "rope_scaling.factor is missing"),
        (
            {"rope_parameters": {"rope_type": "default", "fancy": 1}},
            "fancy of type default = 1 is not understood",
        ),
        ({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ({"rope_theta": -1}, "rope_theta must be a positive number"),
        ({"rope_theta": 10**400}, "rope_theta must be a positive number"),
        ({"rope_theta": 1, "rope_scaling": {"type": "yarn", "factor": 2.0}}, "rope_theta must not be 1"),
        ({"rope_scaling": {"type": ["linear"]}}, r'RoPE type \["linear"\] is not supported'),
        (  # transformers takes the old spelling, in which theta is 10,000
            {"rope_parameters": LINEAR | {"rope_theta": 5e5}, "rope_scaling": {"type": "linear", "factor": 2.0}},
            "rope_parameters and rope_scaling differ",
        ),
        (GEMMA2 | {"sliding_window": None}, "^[^:]*: layer 0 slides, but sliding_window gives no window"),
        (GEMMA2 | {"hidden_activation": "gelu"}, 'hidden_activation = "gelu" is not supported'),
        (GEMMA2 | {"final_logit_softcapping": 0}, "final_logit_softcapping must be a positive number"),
        (GEMMA2 | {"attn_logit_softcapping": "50"}, "attn_logit_softcapping must be a positive number"),
        (GEMMA2 | {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar must be a positive number"),
        (GEMMA3 | {"sliding_window_pattern": 0}, "sliding_window_pattern must be a positive integer"),
        (GEMMA3 | {"use_bidirectional_attention": True}, "use_bidirectional_attention = true is not supported"),
        (GEMMA3 | {"rope_parameters": LINEAR}, "rope_parameters must have an object for each kind of layer"),
        (
            GEMMA3 | {"rope_scaling": {"type": "linear", "factor": 8.0}},
            "rope_scaling.type: transformers does not read",
        ),
        (GEMMA3 | {"rope_local_base_freq": "low"}, "rope_theta must be a positive number"),
        (GEMMA3 | {"architectures": ["Gemma3ForConditionalGeneration"]}, "text_config must be an object, not null"),
        (GEMMA3_4B | {"quantization_config": {"bits": 4}}, "quantization_config: "),
        (CLASSIFIER | {"id2label": {"1": "a", "2": "b"}}, "id2label must name the rows 0 to 1"),
        (CLASSIFIER | {"id2label": {}}, "id2label must be an object that names every row"),
        (CLASSIFIER | {"id2label": {"0": 7}}, "id2label must be an object that names every row"),
        (CLASSIFIER | {"id2label": {"0": "a"}, "num_labels": 5}, r"num_labels \(5\) and the 1 names of id2label"),
        (CLASSIFIER | {"num_labels": 0}, "num_labels must be a positive integer"),
        (CLASSIFIER | {"problem_type": "guess"}, 'problem_type = "guess" is not supported'),
        (CLASSIFIER | {"problem_type": "single_label_classification", "num_labels": 1}, "needs more than one label"),
    ],
)
def test_what_is_not_implemented_is_refused_by_name(tmp_path: Path, changes: dict, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        read(tmp_path, **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"hidden_act": "swish"},
        # Biases that transformers' model of the family does not have; a tensor of one would be refused.
        {"mlp_bias": True},
        {"architectures": ["Qwen2ForCausalLM"], "attention_bias": True},
        MISTRAL | {"attention_bias": True},
        GEMMA2 | {"hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh"},  # only one is read
        GEMMA3 | {"use_bidirectional_attention": False, "cache_implementation": "hybrid"},
        SMOLLM3 | {"use_sliding_window": True},  # whose window is null where it is silent
        {"use_sliding_window": True},  # the first layer that slides is the 28th
        {"use_sliding_window": True, "max_window_layers": 2},
        {"use_sliding_window": True, "max_window_layers": 0, "sliding_window": None},
        {"use_sliding_window": True, "max_window_layers": 0, "layer_types": ["full_attention"] * 2},
        {"architectures": ["LlamaForCausalLM"], "pretraining_tp": 2},  # said how training cut the products
        SMOLLM3 | {"use_sliding_window": True, "sliding_window": 64, "layer_types": ["full_attention"] * 6},
        {"rope_scaling": {"type": "yarn", "factor": 2.0, "finetuned": True}},
        {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": LINEAR},
        {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": LINEAR | {"rope_theta": 1e4}},
    ],
)
def test_what_changes_nothing_is_accepted(tmp_path: Path, changes: dict) -> None:
    read(tmp_path, **changes)


def test_an_empty_object_of_rope_parameters_hides_no_scaling(tmp_path: Path) -> None:
    assert rope_of(read(tmp_path, rope_parameters={}, rope_scaling=LINEAR)).kind == "linear"


@pytest.mark.parametrize(("name", "positions"), [("Qwen3ForCausalLM", 32768), ("LlamaForCausalLM", 2048)])
def test_without_a_longest_sequence_the_familys_counts(tmp_path: Path, name: str, positions: int) -> None:
    assert read(tmp_path, architectures=[name], max_position_embeddings=None).max_positions == positions


@pytest.mark.parametrize(
    ("scaling", "longest"),
    [
        (None, 512),
        (LLAMA3, 512),
        (LINEAR, 1024),
        (LINEAR | {"original_max_position_embeddings": 400}, 800),
        (LINEAR | {"original_max_position_embeddings": 100}, 512),
        (LINEAR | {"factor": 1e308}, 2**31 - 1),
        ({"type": "yarn", "factor": 2.5}, 1280),
        ({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 300}, 1200),
    ],
)
def test_scaling_says_how_long_a_sequence_may_be(tmp_path: Path, scaling: dict | None, longest: int) -> None:
    config = read(tmp_path, rope_scaling=scaling)
    assert (config.max_positions, config.longest) == (512, longest)


@pytest.mark.parametrize(
    ("changes", "labels", "activation"),
    [
        ({}, ("LABEL_0", "LABEL_1"), "softmax"),
        ({"num_labels": 1}, ("LABEL_0",), "sigmoid"),
        ({"id2label": {"1": "b", "0": "a", "2": "c"}, "num_labels": 3}, ("a", "b", "c"), "softmax"),
        ({"num_labels": 3, "problem_type": "multi_label_classification"}, ("LABEL_0", "LABEL_1", "LABEL_2"), "sigmoid"),
        ({"num_labels": 1, "problem_type": "regression"}, ("LABEL_0",), "identity"),
    ],
)
def test_labels_of_a_head_are_those_of_transformers(
    tmp_path: Path, changes: dict, labels: tuple[str, ...], activation: str
) -> None:
    from transformers import Qwen3Config

    config = read(tmp_path, **CLASSIFIER, **changes)
    assert (config.head_labels, config.head_rows) == (labels, len(labels))
    assert (config.head_activation, config.tied) == (activation, False)
    assert tuple(Qwen3Config.from_pretrained(tmp_path).id2label.values()) == tuple(
        changes.get("id2label", dict(enumerate(labels))).values()
    )


def test_a_language_model_has_no_labels(tmp_path: Path) -> None:
    config = read(tmp_path, id2label={"0": "a"})
    assert (config.head_labels, config.head_rows, config.tied) == ((), config.vocab_size, True)


def test_a_config_is_an_object(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ModelError, match="holds a JSON list, not an object"):
        read_model_config(tmp_path)


def test_missing_directory_file_and_broken_json(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="does not exist"):
        read_model_config(tmp_path / "nowhere")
    with pytest.raises(ModelError, match=r"config\.json: missing"):
        read_model_config(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelError, match="not valid JSON"):
        read_model_config(tmp_path)


def test_a_mistral_config_that_says_nothing_of_a_window_has_one(tmp_path: Path) -> None:
    long = read(tmp_path, architectures=["MistralForCausalLM"], max_position_embeddings=4097)
    assert windows_of(long.layers) == (4096,)
    assert windows_of(read(tmp_path, **MISTRAL, max_position_embeddings=4097).layers) == ()


def test_a_window_that_holds_every_sequence_is_none(tmp_path: Path) -> None:
    windows = {"sliding_window": 512, "use_sliding_window": True, "max_window_layers": 0}
    assert windows_of(read(tmp_path, **windows).layers) == ()
    assert windows_of(read(tmp_path, **windows, max_position_embeddings=513).layers) == (512,)


_kinds = st.lists(st.sampled_from(["full_attention", "sliding_attention"]), min_size=6, max_size=6)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.sampled_from(["Qwen2", "Qwen3", "Mistral", "Ministral", "SmolLM3", "Gemma2", "Gemma3"]),
    given_settings=st.fixed_dictionaries(
        {},
        optional={
            "sliding_window": st.sampled_from([None, 1, 64, 4096]),
            "use_sliding_window": st.booleans(),
            "max_window_layers": st.integers(-1, 7),
            "layer_types": _kinds,
            "no_rope_layers": st.lists(st.integers(0, 1), min_size=6, max_size=6),
            "sliding_window_pattern": st.integers(1, 7),
        },
    ),
)
def test_layers_slide_as_those_of_transformers(tmp_path: Path, name: str, given_settings: dict) -> None:
    """Or settings are refused, which is where transformers' classes read two that contradict each other."""
    import transformers

    changes = {"architectures": [f"{name}ForCausalLM"], "num_hidden_layers": 6, "max_position_embeddings": 8192}
    (tmp_path / "config.json").write_text(json.dumps(BASE | changes | given_settings))
    theirs = getattr(transformers, FAMILIES[f"{name}ForCausalLM"].config_class).from_pretrained(tmp_path)
    window = getattr(theirs, "sliding_window", None)
    kinds = theirs.layer_types if "layer_types" in type(theirs).__annotations__ else None
    slides = [window is not None if kinds is None else kind == "sliding_attention" for kind in kinds or [""] * 6]
    listed = [kind == "sliding_attention" for kind in given_settings.get("layer_types", [])]
    is_off = window is None or (name == "SmolLM3" and not given_settings.get("use_sliding_window"))
    if window is None and name.startswith("Gemma") and "sliding_attention" in theirs.layer_types:
        with pytest.raises(ModelError, match="slides, but sliding_window gives no window"):
            read_model_config(tmp_path)
        return
    if (any(listed) and is_off) or (name == "Mistral" and listed and listed != slides):
        with pytest.raises(ModelError, match="layer_types"):
            read_model_config(tmp_path)
        return
    assert [layer.window for layer in read_model_config(tmp_path).layers] == [
        window if each else None for each in slides
    ]
