"""Merged LoRA adapters against PEFT's own merging; and everything that an adapter's files may say wrongly."""

import dataclasses
import itertools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from mis_core import Engine
from mis_core.checkpoints import open_model
from mis_core.checkpoints.lora_settings import HARMLESS, REFUSED, UNDERSTOOD, parse_lora_settings
from mis_core.checkpoints.text_settings import name_in_text
from mis_core.config import EngineConfig
from mis_core.errors import ModelError
from mis_testing.checkpoint import tiny_checkpoint
from mis_testing.options import SMALL_ENGINE

peft = pytest.importorskip("peft", reason="needs PEFT: pip install peft")

pytestmark = [
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated"),  # which PEFT reads
    pytest.mark.filterwarnings("ignore:fan_in_fan_out is set to True"),
]

FAMILIES = ["qwen3", "qwen2", "llama", "mistral", "smollm3"]
NIGHTLY = ["ministral", "gemma2", "gemma3", "qwen3_5"]
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
RECURRENCE = ["in_proj_qkv", "in_proj_z", "in_proj_a", "in_proj_b", "out_proj"]
EVERYTHING = {
    "r": 3,
    "lora_alpha": 5,
    "use_rslora": True,
    "target_modules": [*ATTENTION, *RECURRENCE, "gate_proj", "up_proj", "down_proj"],
    "exclude_modules": ["layers.1.mlp.up_proj"],
    "rank_pattern": {"q_proj": 2, "layers.0.mlp.down_proj": 4},
    "alpha_pattern": {"layers.1.*.v_proj": 11},
    "fan_in_fan_out": True,
}
CASES = {
    "attention": {"target_modules": ATTENTION},
    "mlp by a pattern": {"target_modules": r".*layers\.\d\.mlp\.(up|down)_proj", "lora_alpha": 3},
    "one layer": {"target_modules": ATTENTION, "layers_to_transform": 1, "layers_pattern": "layers"},
    "everything": EVERYTHING,
    "rows of the embedding": {"target_modules": ATTENTION, "trainable_token_indices": {"embed_tokens": [7, 3]}},
    "all linear layers": {"target_modules": "all-linear", "init_lora_weights": "orthogonal", "r": 4},
}


NIGHTLY_CASES = [
    pytest.param(family, case, marks=pytest.mark.full)
    for family, case in itertools.product(NIGHTLY, CASES)
    if (family, case) != ("qwen3_5", "everything")
]


def save_adapter(model: Any, folder: Path, **config: Any) -> Any:
    """Save an adapter with random matrices, and return the model with it merged by PEFT."""
    import torch

    torch.manual_seed(0)
    adapted = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **config))
    for name, parameter in adapted.named_parameters():
        if "lora_" in name or "trainable_tokens" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    adapted.save_pretrained(folder)
    return adapted.merge_and_unload()


def load(path: Path) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("model"), "qwen3")


@pytest.fixture(scope="module")
def adapter(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapter")
    save_adapter(load(model), folder, **EVERYTHING)
    return folder


def merged(model: Path, adapter: Path, **options: Any) -> dict[str, np.ndarray]:
    with open_model(EngineConfig(model=str(model), merge_lora=str(adapter), **options)).tensors() as stored:
        return {name: tensor.read().astype(np.float32) for name, tensor in stored.items()}


@pytest.mark.parametrize(
    ("family", "case"), [*itertools.product(FAMILIES, CASES), ("qwen3_5", "everything"), *NIGHTLY_CASES]
)
def test_weights_are_those_that_peft_merges(family: str, case: str, tmp_path: Path) -> None:
    model = tiny_checkpoint(tmp_path / "model", family)
    theirs = save_adapter(load(model), tmp_path / "adapter", **CASES[case]).state_dict()
    ours, plain = merged(model, tmp_path / "adapter"), load_file(model / "model.safetensors")
    changed = 0
    for name, weight in ours.items():
        np.testing.assert_allclose(weight, theirs[name].numpy(), atol=2e-6, err_msg=name)
        changed += not np.array_equal(weight, plain[name].astype(np.float32))
    stored = load_file(_weights(tmp_path / "adapter"))
    assert changed == sum(name.endswith(("lora_A.weight", "trainable_tokens_delta")) for name in stored)


@pytest.mark.full
def test_an_adapter_is_merged_into_a_gguf_file_in_several_parts(model: Path, adapter: Path, tmp_path: Path) -> None:
    pytest.importorskip("gguf", reason="needs gguf, which mis-core[gguf] brings")
    from mis_testing.gguf_file import write_gguf

    ours, theirs = merged(write_gguf(tmp_path / "model.gguf", model, most_tensors=5), adapter), merged(model, adapter)
    for name, weight in ours.items():
        np.testing.assert_array_equal(weight, theirs[name], err_msg=name)
    assert ours.keys() == theirs.keys()


@pytest.mark.parametrize(
    ("family", "sizes"),
    [
        (FAMILIES[0], {}),
        *(pytest.param(family, {}, marks=pytest.mark.full) for family in (*FAMILIES[1:], *NIGHTLY)),
        pytest.param("qwen3_5", {"tie_word_embeddings": False}, marks=pytest.mark.full, id="qwen3_5-untied"),
    ],
)
def test_scores_are_those_of_peft_on_transformers(family: str, sizes: dict[str, Any], tmp_path: Path) -> None:
    import torch

    model = tiny_checkpoint(tmp_path / "model", family, **sizes)
    theirs = save_adapter(load(model), tmp_path / "adapter", **EVERYTHING)
    tokens, labels = [5, 99, 300, 7, 41], [11, 12, 500]
    options = SMALL_ENGINE | {"dtype": "float32"}
    with Engine.from_pretrained(model, merge_lora=str(tmp_path / "adapter"), **options) as engine:
        ours = engine.score(tokens[:3], [tokens[3:]], labels).scores[0]
    with torch.no_grad():
        logits = theirs(torch.tensor([tokens])).logits[0, -1]
    np.testing.assert_allclose(ours, torch.softmax(logits, -1)[labels].numpy(), atol=1e-4, rtol=1e-4)
    with Engine.from_pretrained(model, **options) as engine:  # without it they are others
        assert np.abs(engine.score(tokens[:3], [tokens[3:]], labels).scores[0] - ours).max() > 1e-5


@pytest.mark.parametrize("stored", ["model.language_model.", "language_model.model."])
@pytest.mark.parametrize("trained_on", ["model.language_model.", "language_model.model.", "model."])
def test_an_adapter_of_a_model_with_images_changes_its_text(stored: str, trained_on: str, tmp_path: Path) -> None:
    """Whichever way either spells its tensors; what belongs to the tower is left as it is, and out."""
    text = tiny_checkpoint(tmp_path / "text", "gemma3")
    adapter = tmp_path / "adapter"
    save_adapter(load(text), adapter, target_modules=["q_proj"], trainable_token_indices={"embed_tokens": [7]})
    expected = merged(text, adapter)
    rename(adapter / "adapter_model.safetensors", "base_model.model.model.", f"base_model.model.{trained_on}")
    rename(text / "model.safetensors", "model.", stored)
    tower = f"{'model.' if stored.startswith('model.') else ''}vision_tower.layers.0.self_attn.q_proj.weight"
    tensors = load_file(text / "model.safetensors")
    save_file(tensors | {tower: np.ones((4, 4), np.float32)}, text / "model.safetensors")
    settings = json.loads((text / "config.json").read_text())
    whole = {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "text_config": settings}
    (text / "config.json").write_text(json.dumps(whole))
    found = merged(text, adapter)
    assert found.pop(tower).shape == (4, 4)
    assert {name_in_text(name) for name in found} == {name_in_text(name) for name in expected}
    wanted = {name_in_text(name): weight for name, weight in expected.items()}
    assert all(np.array_equal(weight, wanted[name_in_text(name)]) for name, weight in found.items())


def test_layers_that_guess_tokens_ahead_keep_their_weights(tmp_path: Path) -> None:
    """Published Qwen3.5 has such layers, whose modules have the names of targets; transformers leaves them out."""
    model, adapter = tiny_checkpoint(tmp_path / "model", "qwen3_5"), tmp_path / "adapter"
    save_adapter(load(model), adapter, target_modules=ATTENTION)
    expected, file = merged(model, adapter), model / "model.safetensors"
    ahead = "mtp.layers.0.self_attn.q_proj.weight"
    save_file(load_file(file) | {ahead: np.ones((4, 4), np.float32)}, file)
    found = merged(model, adapter)
    np.testing.assert_array_equal(found.pop(ahead), 1)
    assert found.keys() == expected.keys()
    assert all(np.array_equal(weight, expected[name]) for name, weight in found.items())


def test_an_adapter_of_a_convolution_is_refused(tmp_path: Path) -> None:
    """PEFT applies one to a convolution of groups, and merges none."""
    model, adapter = tiny_checkpoint(tmp_path / "model", "qwen3_5"), tmp_path / "adapter"
    save_adapter(load(model), adapter, target_modules=["in_proj_z"])
    changed_settings(target_modules=["in_proj_z", "conv1d"])(adapter)
    first = "base_model.model.model.layers.0.linear_attn.conv1d.lora_"
    parts = {f"{first}A.weight": np.zeros((192, 192, 4)), f"{first}B.weight": np.zeros((192, 1, 1))}
    changed_tensors(lambda tensors: tensors.update(parts))(adapter)
    known = "q_proj, k_proj, v_proj, o_proj, in_proj_qkv, in_proj_z, in_proj_a, in_proj_b, out_proj"
    with pytest.raises(ModelError, match=f"layers.0.linear_attn.conv1d is not a module .* known: {known}"):
        merged(model, adapter)


def rename(path: Path, old: str, new: str) -> None:
    tensors = load_file(path)
    save_file({name.replace(old, new, 1) if name.startswith(old) else name: x for name, x in tensors.items()}, path)


def test_an_adapter_of_a_model_without_its_head_is_found(model: Path, adapter: Path, tmp_path: Path) -> None:
    shutil.copytree(adapter, tmp_path / "bare")
    tensors = {name.replace("base_model.model.model.", "base_model.model."): each for name, each in _stored(adapter)}
    save_file(tensors, _weights(tmp_path / "bare"))
    ours, bare = merged(model, adapter), merged(model, tmp_path / "bare")
    assert all(np.array_equal(weight, bare[name]) for name, weight in ours.items())


def test_the_adapter_in_decision_json_goes_with_its_own_prompt(model: Path, adapter: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(model, tmp_path / "model")
    shutil.copytree(adapter, folder / "lora")
    (folder / "decision.json").write_text('{"adapter": "lora"}')
    ours = merged(model, adapter)
    with open_model(EngineConfig(model=str(folder))).tensors() as stored:
        assert all(np.array_equal(each.read().astype(np.float32), ours[name]) for name, each in stored.items())
    plain = load_file(model / "model.safetensors")
    with open_model(EngineConfig(model=str(folder), decision_prompt="mis")).tensors() as stored:
        assert all(np.array_equal(each.read(), plain[name]) for name, each in stored.items())
    (folder / "decision.json").write_text('{"adapter": "../lora"}')
    with pytest.raises(ModelError, match="not inside the model's directory"):
        open_model(EngineConfig(model=str(folder)))


# Damaged and hostile files.


def _weights(folder: Path) -> Path:
    return folder / "adapter_model.safetensors"


def _stored(folder: Path) -> list[tuple[str, np.ndarray]]:
    return list(load_file(_weights(folder)).items())


def changed_settings(**fields: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "adapter_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | fields))

    return change


def changed_tensors(change: Callable[[dict[str, np.ndarray]], Any]) -> Callable[[Path], None]:
    def changed(folder: Path) -> None:
        tensors = dict(_stored(folder))
        change(tensors)
        save_file(tensors, _weights(folder))

    return changed


def with_rows(tokens: list[int], shape: tuple[int, int]) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        changed_settings(trainable_token_indices=tokens)(folder)
        changed_tensors(lambda tensors: tensors.update({ROWS: np.zeros(shape, np.float32)}))(folder)

    return change


ROWS = "base_model.model.model.embed_tokens.token_adapter.trainable_tokens_delta"
FIRST = "base_model.model.model.layers.0.self_attn.q_proj.lora_"
BROKEN = {
    "no settings": (lambda folder: (folder / "adapter_config.json").unlink(), "adapter_config.json: missing"),
    "no weights": (lambda folder: _weights(folder).unlink(), "adapter_model.safetensors: missing"),
    "torn": (lambda folder: _weights(folder).write_bytes(b"\x00" * 9), "truncated or not a safetensors file"),
    "another kind": (changed_settings(peft_type="IA3"), "peft_type is 'IA3'; only LoRA adapters can be merged"),
    "dora": (changed_settings(use_dora=True), "use_dora = True cannot be merged"),
    "bias": (changed_settings(bias="lora_only"), "bias = 'lora_only' cannot be merged"),
    "new field": (changed_settings(brand_new=3), "brand_new = 3 is not understood"),
    "new field, off": (changed_settings(brand_new=None, lora_bias=False), None),
    "pissa": (changed_settings(init_lora_weights="pissa_niter_4"), "init_lora_weights = 'pissa_niter_4' may change"),
    "rank of text": (changed_settings(r="8"), "Expected `int`"),
    "rank of 0": (changed_settings(rank_pattern={"q_proj": 0}), "a rank must be at least 1"),
    "alpha of text": (changed_settings(lora_alpha="x"), "Expected `float`"),
    "tokens without rows": (changed_settings(trainable_token_indices=[3]), "must be given together"),
    "rows without tokens": (
        changed_tensors(lambda tensors: tensors.update({ROWS: np.zeros((1, 64), np.float32)})),
        "must be given together",
    ),
    "tokens of another module": (changed_settings(trainable_token_indices={"lm_head": [3]}), "only, not lm_head"),
    "a token twice": (changed_settings(trainable_token_indices=[3, 3]), "names a token twice"),
    "a token beyond": (with_rows([3, 1 << 20], (2, 64)), "are not all rows of model.embed_tokens.weight"),
    "rows of another width": (with_rows([3, 4], (2, 63)), r"it must be floats of \(2, 64\)"),
    "no targets": (changed_settings(target_modules=None), "missing required field `target_modules`"),
    "broken pattern": (changed_settings(target_modules="(q_proj"), "is not a regular expression"),
    "nested pattern": (changed_settings(target_modules="(" * 400 + "q" + ")" * 400), "does not name|not a regular"),
    "recursive pattern": (changed_settings(target_modules="(?R)"), "syntax that Python lacks"),
    "fuzzy pattern": (changed_settings(target_modules="(q_proj){e<=9}"), "syntax that Python lacks"),
    "endless pattern": (changed_settings(target_modules=r"(?:[a-z]|[a-z_.0-9]|\w+)*[!?]"), "takes more than a second"),
    "another scale of ranks": (changed_settings(r=5), "it must be floats of"),
    "not a target": (changed_settings(target_modules=ATTENTION), "which target_modules does not name"),
    "half": (changed_tensors(lambda tensors: tensors.pop(FIRST + "B.weight")), "has only lora_A"),
    "a missing layer": (
        changed_tensors(lambda tensors: [tensors.pop(f"{FIRST}{part}.weight") for part in "AB"]),
        "model.layers.0.self_attn.q_proj has no tensors, though target_modules names it",
    ),
    "turned": (
        changed_tensors(
            lambda tensors: tensors.update({FIRST + "A.weight": np.ascontiguousarray(tensors[FIRST + "A.weight"].T)})
        ),
        r"it must be floats of \(2, 64\)",
    ),
    "integers": (
        changed_tensors(lambda tensors: tensors.update({FIRST + "A.weight": np.zeros((2, 64), np.int32)})),
        "it must be floats of",
    ),
    "twice": (
        changed_tensors(
            lambda tensors: tensors.update(
                {
                    f"{FIRST.replace('model.model', 'model')}{part}.weight": tensors[f"{FIRST}{part}.weight"]
                    for part in "AB"
                }
            )
        ),
        "changes model.layers.0.self_attn.q_proj.weight twice",
    ),
    "an embedding": (
        changed_tensors(
            lambda tensors: tensors.update({"base_model.model.model.embed_tokens.lora_embedding_A": np.zeros((2, 9))})
        ),
        "is not part of a LoRA adapter",
    ),
    "a head": (
        changed_tensors(lambda tensors: tensors.update({"base_model.model.lm_head.lora_A.weight": np.zeros((2, 9))})),
        "lm_head is not a module that adapters can change",
    ),
    "a layer too many": (
        changed_tensors(lambda tensors: tensors.update({FIRST.replace("0", "7") + "A.weight": np.zeros((2, 9))})),
        "model.layers.7.self_attn.q_proj is not a module that adapters can change",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", BROKEN)
def test_what_is_wrong_with_an_adapter_is_said_in_a_sentence(
    model: Path, adapter: Path, tmp_path: Path, fault: str
) -> None:
    folder = shutil.copytree(adapter, tmp_path / "adapter")
    spoil, message = BROKEN[fault]
    spoil(folder)
    if message is None:
        assert merged(model, folder)
        return
    with pytest.raises(ModelError, match=message) as refused:
        merged(model, folder)
    assert str(folder) in refused.value.message
    assert len(refused.value.message) < 700


# Settings.


def test_every_field_of_peft_is_in_one_of_the_lists() -> None:
    fields = {field.name for field in dataclasses.fields(peft.LoraConfig)} | {"peft_version"}
    assert sorted(UNDERSTOOD | HARMLESS | REFUSED) == sorted(fields)
    assert len(fields) == len(UNDERSTOOD) + len(HARMLESS) + len(REFUSED)


def test_what_must_be_off_is_off_by_default() -> None:
    given = peft.LoraConfig(target_modules=["q_proj"]).to_dict()
    assert parse_lora_settings({**given, "peft_type": "LORA", "target_modules": ["q_proj"]}).r == 8


parts = st.lists(st.sampled_from(["model", "layers", "0", "1", "12", "mlp", "q_proj", "x_q_proj", "up"]), min_size=1)
modules = parts.map(".".join)
patterns = st.sampled_from(
    ["q_proj", "0.mlp.up", ".*up", "layers.1", r"layers\.\d+\.mlp", "mlp.*", "model.layers.0.mlp.up"]
)


@given(
    module=modules,
    targets=st.lists(patterns, min_size=1) | patterns,
    excluded=st.none() | st.lists(patterns) | patterns,
    layers=st.none() | st.integers(0, 12) | st.lists(st.integers(0, 12)),
    lists=st.none() | st.just("layers") | st.lists(st.sampled_from(["layers", "mlp", "(layers|h)"])),
    ranks=st.dictionaries(patterns, st.integers(1, 9)),
    alphas=st.dictionaries(patterns, st.integers(1, 9)),
    rooted=st.booleans(),
)
@settings(max_examples=300)
def test_targets_ranks_and_scales_are_those_of_peft(
    module: str, targets: Any, excluded: Any, layers: Any, lists: Any, ranks: Any, alphas: Any, rooted: bool
) -> None:
    from peft.tuners.tuners_utils import check_target_module_exists
    from peft.utils.other import get_pattern_key

    fields = {
        "target_modules": targets,
        "exclude_modules": excluded,
        "layers_to_transform": None if isinstance(targets, str) else layers,
        "layers_pattern": None if isinstance(targets, str) or layers is None else lists,
        "rank_pattern": ranks,
        "alpha_pattern": alphas,
        "use_rslora": rooted,
        "r": 7,
        "lora_alpha": 3,
    }
    ours = parse_lora_settings({"peft_type": "LORA"} | fields)
    theirs = peft.LoraConfig(**fields)
    assert ours.targets(module) == bool(check_target_module_exists(theirs, module))
    rank = ranks.get(get_pattern_key(ranks, module), 7)
    alpha = alphas.get(get_pattern_key(alphas, module), 3)
    assert ours.rank(module) == rank
    assert ours.scale(module) == pytest.approx(alpha / (rank**0.5 if rooted else rank))
