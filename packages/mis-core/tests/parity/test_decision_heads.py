"""Trained decision heads, in each form in which transformers reads them, answer as its `JevForDecision`."""

import itertools
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from transformers import AutoTokenizer, pipeline

from decision_heads import CALIBRATION, EMBED, JUDGE, SLOTS, pointer_package, rows, with_judge, with_readout
from decision_oracle import JOINT, QUESTIONS, STATES, compare, with_files
from larger_models import larger_checkpoint
from mis_core import Engine
from mis_core.checkpoints import open_model
from mis_core.config import EngineConfig
from mis_core.errors import ModelError, RequestError
from mis_core.models.config import read_model_config
from mis_core.tokenization import Tokenizer
from mis_core.tokenization.decision_contract import DecisionContract
from mis_testing import tiny_checkpoint
from mis_testing.devices import environment_with_devices
from mis_testing.options import SMALL_ENGINE

pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated"),  # which PEFT reads
]


def with_adapter(path: Path) -> Path:
    import peft
    import torch
    from transformers import AutoModel

    torch.manual_seed(0)
    adapted = peft.get_peft_model(
        AutoModel.from_pretrained(path),
        peft.LoraConfig(target_modules=["q_proj", "up_proj", "out_proj"]),
    )
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    # As the head's model names its modules, within `model`.
    adapted.save_pretrained(path / "adapter")
    file = path / "adapter" / "adapter_model.safetensors"
    tensors = {
        name.replace("base_model.model.", "base_model.model.model."): each for name, each in load_file(file).items()
    }
    save_file(tensors, file)
    return with_judge(path, adapter_subfolder="adapter")


def bare(path: Path) -> Path:
    """Leave nothing but the decoder, as a backbone is saved."""
    from transformers import AutoModel

    config, name = json.loads((path / "config.json").read_text()), type(AutoModel.from_pretrained(path)).__name__
    (path / "config.json").write_text(json.dumps(config | {"architectures": [name]}))
    tensors = load_file(path / "model.safetensors")
    kept = {name.removeprefix("model."): each for name, each in tensors.items() if name != "lm_head.weight"}
    save_file(kept, path / "model.safetensors")
    return path


def saved(path: Path, template: str | None = None, **fields: Any) -> Path:
    """Save a model with a head as `save_pretrained` does, in place of the language model."""
    import torch
    from transformers import AutoConfig, AutoModel, JevConfig, JevForDecision

    config = JevConfig(
        text_config=AutoConfig.from_pretrained(path).to_dict(), hidden_size=EMBED, num_verbalizers=SLOTS, **fields
    )
    model = JevForDecision(config)
    model.model = AutoModel.from_pretrained(path)
    with torch.no_grad():
        model.proj.weight.copy_(torch.tensor(rows(SLOTS)))
        model.proj.bias.copy_(torch.tensor(rows(SLOTS)[:, 1]))
    model.decision_config.labels = {"choice": [*"ABCD"], "score": ["0", "1", "2"]}
    model.decision_config.temperature = {"choice": 2}
    model.decision_config.chat_template = template
    model.save_pretrained(path)
    return path


FORMS: dict[str, Callable[[Path], Path]] = {
    "a readout beside the weights": with_readout,
    "a readout beside a backbone": lambda path: with_readout(bare(path), prompt="pplx"),
    "a judge's head": with_judge,
    "a judge's head and its adapter": with_adapter,
    "saved": lambda path: saved(path, softcap=2.0),
    "saved, all in one prompt": lambda path: saved(path, JOINT),
}
BODIES = ("qwen3", "qwen3_5", "qwen3_5, within")
PER_COMMIT = [
    ("qwen3", "a judge's head and its adapter"),
    ("qwen3", "saved, all in one prompt"),
    ("qwen3_5, within", "saved, all in one prompt"),
]


@pytest.mark.parametrize(
    ("body", "form"),
    [
        pytest.param(*case, marks=() if case in PER_COMMIT else pytest.mark.full)
        for case in (*itertools.product(BODIES, FORMS), ("gemma3, within", "saved"))
    ],
)
def test_answers_are_those_of_the_head(tmp_path: Path, body: str, form: str) -> None:
    family, _, within = body.partition(", ")
    path = tiny_checkpoint(tmp_path / "model", family, vocab_size=2048)
    if within:
        path = larger_checkpoint(tmp_path / "larger", path)
    check_answers(FORMS[form](path), is_found=family == "qwen3_5")


@pytest.mark.full
@pytest.mark.parametrize("family", ["qwen2", "llama", "mistral", "ministral", "smollm3", "gemma2", "gemma3", "qwen3_5"])
def test_answers_match_in_every_family(tmp_path: Path, family: str) -> None:
    check_answers(with_judge(tiny_checkpoint(tmp_path / "model", family, vocab_size=2048)))


def check_answers(path: Path, *, is_found: bool = False) -> None:
    """Compare with the model's head; `is_found`: as the pipeline finds it of itself, which it does in some families."""
    from transformers import JevForDecision

    oracle = str(path) if is_found else JevForDecision.from_pretrained(path, dtype="float32")
    theirs = pipeline("decision", model=oracle, tokenizer=AutoTokenizer.from_pretrained(path), dtype="float32")
    assert isinstance(theirs.model, JevForDecision)
    spread = []
    with Engine.from_pretrained(path, progress=False, **SMALL_ENGINE | {"dtype": "float32"}) as engine:
        for state in STATES:
            expected = theirs({"state": state, "questions": QUESTIONS})
            found = engine.decide(state, QUESTIONS).answers
            for name, answer in expected.items():
                compare(found[name], answer)
            spread.append(found["so"].noul)  # pyrefly: ignore[missing-attribute]
        with pytest.raises(RequestError, match="this model's decision head has"):
            engine.decide("", {"q": {"type": "choice", "criteria": {str(number): None for number in range(9)}}})
    assert np.ptp(spread) > 1e-3  # the head reads the state


def test_a_model_with_a_head_keeps_its_tasks_a_backbone_decides(tmp_path: Path) -> None:
    path = with_readout(tiny_checkpoint(tmp_path / "model", "qwen3", vocab_size=2048))
    question = {"q": {"type": "noul", "instructions": "Is it wet?"}}
    scores = {}
    for prompt in (None, "mis"):
        with Engine.from_pretrained(path, progress=False, **SMALL_ENGINE | {"decision_prompt": prompt}) as engine:
            scores[prompt] = engine.score([1, 2, 3], [[4], [5]], [7, 8]).scores
            answer = engine.decide("Rain.", question).answers["q"]
            assert (answer.x_label_mass is None) == (prompt is None)  # pyrefly: ignore[missing-attribute]
    np.testing.assert_array_equal(scores[None], scores["mis"])
    with Engine.from_pretrained(bare(path), progress=False, **SMALL_ENGINE) as engine:
        assert engine.decide("Rain.", question).answers
        with pytest.raises(RequestError, match="nothing but a decision head"):
            engine.score([1, 2, 3], [[4], [5]], [7, 8])
    with pytest.raises(ModelError, match="architecture Qwen3Model is not supported"):
        Engine.from_pretrained(path, progress=False, **SMALL_ENGINE | {"decision_prompt": "mis"})


def test_no_question_is_read_beyond_the_last_row(tmp_path: Path) -> None:
    path = saved(tiny_checkpoint(tmp_path / "model", "qwen3", vocab_size=2048))  # of 12 rows, choices from 8 on
    settings = json.loads((path / "decision.json").read_text())
    (path / "decision.json").write_text(json.dumps(settings | {"labels": {}}))
    with Engine.from_pretrained(path, progress=False, **SMALL_ENGINE) as engine:
        for count in (4, 5):
            question = {"q": {"type": "choice", "criteria": {str(number): None for number in range(count)}}}
            if count == 4:
                assert engine.decide("Rain.", question).answers
                continue
            with pytest.raises(RequestError, match="has 4 rows for such a question, not 5"):
                engine.decide("Rain.", question)
        beyond = engine.tokenizer.vocabulary.size
        assert beyond == 2048  # of the language model within
        copied = Tokenizer.from_json(engine.tokenizer.to_json())
        assert copied.decision == engine.tokenizer.decision
        assert isinstance(copied.decision, DecisionContract)
        assert copied.decision.head_rows == SLOTS


def without(name: str) -> Callable[[Path], None]:
    return lambda path: (path / name).unlink()


def damaged(name: str, **tensors: Any) -> Callable[[Path], None]:
    return lambda path: save_file(load_file(path / name) | tensors, path / name)


BROKEN: list[tuple[Callable[[Path], Any], str]] = [
    (lambda path: with_readout(path, attention_mode="noncausal_full_attention"), "'noncausal_full_attention' is not"),
    (lambda path: with_readout(path, attention_mode="sideways"), "attention_mode 'sideways' is not served"),
    (lambda path: with_readout(path, prompt="autojev"), "prompt 'autojev' is not known; known are pplx, d3"),
    (lambda path: with_readout(path, pooling="mean"), "pooling 'mean' is not served"),
    (lambda path: with_readout(path, codes=[]), "must have 1 to 65,536 rows, not 0"),
    (lambda path: with_readout(path, codes=5), "Expected `array`, got `int`"),
    (lambda path: with_readout(path, temperature=0), "temperature must be a number above 0"),
    (lambda path: with_readout(path, codes=[*"ABC"]), r"proj.weight has shape \(7, 64\); .* asks for \(3, 64\)"),
    (lambda path: without("readout.safetensors")(with_readout(path)), r"readout\.safetensors: missing"),
    (lambda path: without("decision_config.json")(with_readout(path)), "a decision head of an unknown kind"),
    (lambda path: without("calibration.json")(with_judge(path)), r"calibration\.json: missing"),
    (lambda path: (path / "head.pt").write_text(""), "a decision head of an unknown kind"),
    (lambda path: with_judge(path, softcap=-1), "softcap must be a number above 0"),
    (
        lambda path: with_judge(path, slots=JUDGE["slots"] | {"ranges": {"noul": [0, 99]}}),
        "the range of noul is not within the 12 slots",
    ),
    (
        lambda path: with_judge(path, slots=JUDGE["slots"] | {"ranges": {"noul": [0, 2]}}),
        "must have a row below 12 for each of noul, choice, score",
    ),
    (lambda path: with_judge(path, adapter_subfolder="adapter"), r"adapter_config\.json: cannot be read"),
    (lambda path: with_judge(path, adapter_subfolder="/etc"), "not inside the model's directory"),
    (
        lambda path: damaged("head.safetensors", other=np.zeros(1, np.float32))(with_judge(path)),
        "tensor other is not part of a decision head",
    ),
    (
        lambda path: damaged("head.safetensors", **{"proj.bias": np.full(12, np.nan, np.float32)})(with_judge(path)),
        r"proj\.bias holds NaN",
    ),
]


@pytest.mark.parametrize("number", range(len(BROKEN)))
def test_a_model_with_an_unknown_head_is_refused_in_a_sentence(tmp_path: Path, number: int) -> None:
    spoil, message = BROKEN[number]
    path = tiny_checkpoint(tmp_path / "model", "qwen3", vocab_size=2048)
    spoil(path)
    with pytest.raises(ModelError, match=message) as refused:
        Engine.from_pretrained(path, progress=False, **SMALL_ENGINE).tokenizer  # noqa: B018 - it is read when asked for
    assert len(refused.value.message) < 600
    without_it = EngineConfig(model=str(path), decision_prompt="mis")
    assert read_model_config(open_model(without_it), with_decision_head=False).decision is None
    assert [part.kind for part in open_model(without_it).parts(with_head=False)] == ["base"]


def test_temperatures_by_question_type_follow_decisionformer(tmp_path: Path) -> None:
    contracts = []
    for name, fields in (("one", {}), ("by type", {"temperature_by_type": {"noul": 2.6}})):
        path = with_readout(tiny_checkpoint(tmp_path / name, "qwen3", vocab_size=2048), **fields)
        contracts.append(contract_of(path))
    kinds = {"noul": 2, "choice": 3, "score": 5}
    one, by_type = ({kind: each.temperature_of(kind, count) for kind, count in kinds.items()} for each in contracts)
    assert (one, by_type) == (dict.fromkeys(kinds, 1.3), one | {"noul": 2.6})


def contract_of(path: Path) -> DecisionContract:
    contract = Tokenizer.of(EngineConfig(model=str(path))).decision
    assert isinstance(contract, DecisionContract)
    return contract


def test_decision_files_are_ignored_when_the_model_has_a_head(tmp_path: Path) -> None:
    path = with_judge(tiny_checkpoint(tmp_path / "model", "qwen3", vocab_size=2048))
    without_files = contract_of(path)
    with_files(path, None, {"labels": {"noul": ["Y", "N"]}, "temperature": {"noul": 9.0}})
    assert contract_of(path) == without_files


def test_a_changed_byte_of_head_or_adapter_changes_its_digest(tmp_path: Path) -> None:
    def parts(path: Path) -> dict[str, str]:
        return {part.kind: part.sha256 for part in open_model(EngineConfig(model=str(path))).parts(with_head=True)}

    def flip(file: Path) -> None:
        content = bytearray(file.read_bytes())
        content[-2] ^= 1
        file.write_bytes(content)

    path = with_adapter(tiny_checkpoint(tmp_path / "model", "qwen3", vocab_size=2048))
    before = parts(path)
    assert list(before) == ["base", "head", "adapter"]
    for file, kind in (("head.safetensors", "head"), ("adapter/adapter_model.safetensors", "adapter")):
        flip(path / file)
        after = parts(path)
        assert [name for name in before if after[name] != before[name]] == [kind]
        before = after
    (path / "calibration.json").write_text(json.dumps(CALIBRATION | {"note": 1}))
    assert parts(path)["head"] != before["head"]
    within = saved(tiny_checkpoint(tmp_path / "saved", "qwen3", vocab_size=2048))
    before = parts(within)
    tensors = load_file(within / "model.safetensors")
    save_file(tensors | {"proj.bias": tensors["proj.bias"] + 1}, within / "model.safetensors")
    assert parts(within)["head"] != before["head"]


PROGRAM = """
import json, sys
from mis_core import Engine
path, questions, options = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
with Engine.from_pretrained(path, progress=False, **options) as engine:
    answers = engine.decide("A cat sleeps on the warm mat.", questions).answers
several = [value for name in ("which", "how") for value in answers[name].probabilities.values()]
print(json.dumps([answers["so"].noul, *several]))
"""


@pytest.mark.full
@pytest.mark.parametrize("form", [with_judge, with_readout, lambda path: pointer_package(path.parent)])
def test_heads_answer_alike_on_two_devices_and_when_quantised(tmp_path: Path, form: Callable[[Path], Path]) -> None:
    path = form(tiny_checkpoint(tmp_path / "model", "qwen3", vocab_size=2048, num_attention_heads=4))

    def answers(**options: Any) -> np.ndarray:
        given = SMALL_ENGINE | {"dtype": "float32"} | options
        command = [sys.executable, "-c", PROGRAM, str(path), json.dumps(QUESTIONS), json.dumps(given)]
        done = subprocess.run(command, env=environment_with_devices(2), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        return np.array(json.loads(done.stdout.splitlines()[-1]))

    alone = answers()
    np.testing.assert_array_equal(answers(dp_size=2), alone)
    np.testing.assert_allclose(answers(tp_size=2), alone, rtol=0, atol=1e-4)
    quantised = answers(quantization="int8")
    assert 0 < np.abs(quantised - alone).max() < 0.05
