"""GGUF files with llama.cpp's decision fields answer as the same checkpoint with the files of transformers."""

import itertools
import json
import string
import unicodedata
from pathlib import Path
from typing import Any

import pytest

from decision_oracle import QUESTIONS, STATES
from mis_core import Engine
from mis_core.errors import ModelError, RequestError
from mis_testing import tiny_checkpoint
from mis_testing.options import SMALL_ENGINE

pytest.importorskip("gguf", reason="needs gguf, which mis-core[gguf] brings")

from mis_testing.gguf_file import write_gguf

THEIRS = (
    "\n  {%- macro text(x) %}{{ '' if x is none else x if x is string else x|tojson(separators=[',', ':']) }}"
    "{% endmacro -%}"
    "{% if images %}Images.{% endif %}{{ id }} {{ type }}\n{{ text(state) }}\n{{ text(instructions) }}\n"
    "{% for o in options %}{{ o.label if o.label is defined else '-' }}: {{ o.key }} {{ text(o.description) }}\n"
    "{% endfor %}Answer:\n\n"
)
OURS = (
    "\n  {%- macro text(x) %}{{ '' if x is none else x if x is string else x|tojson(separators=[',', ':']) }}"
    "{% endmacro -%}"
    "{{ question.name }} {{ question.type }}\n{{ text(state) }}\n{{ text(question.instructions) }}\n"
    "{% for o in question.options %}{{ LABEL }}: {{ o }} {{ text(question.descriptions[loop.index0]) }}\n"
    "{% endfor %}Answer:\n{{ '<|mark|>' }}"
)


def composed(value: Any) -> Any:
    """In the form that the tokenizers of GGUF files read as that of the checkpoint does: they do not normalise."""
    return json.loads(unicodedata.normalize("NFC", json.dumps(value, ensure_ascii=False)))


LABEL = "question.labels[loop.index0]"


def fields(kind: str, template: str = THEIRS, **temperatures: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"qwen3.decision.type": kind, "tokenizer.chat_template.systemone": template}
    return found | {f"qwen3.decision.temperature.{name}": value for name, value in temperatures.items()}


@pytest.mark.parametrize("kind", ["nimble", pytest.param("openjev", marks=pytest.mark.full)])
def test_answers_are_those_of_the_same_checkpoint_in_safetensors(tmp_path: Path, kind: str) -> None:
    path = tiny_checkpoint(tmp_path / "model", "qwen3", vocab_size=2048)
    temperatures = {"choice": 9.0, "choice.3_5": 1.5, "noul": "2.5", "score.6_10": 7.0}
    file = write_gguf(tmp_path / "model.gguf", path, fields=fields(kind, **temperatures))
    settings = {"labels": {}, "temperature": {"choice": 1.5, "noul": 2.5}}
    for name in ("noul", "choice", "score"):
        settings["labels"][name] = [*"ABCDEF"]
    settings["noul_options"] = ["false", "true"] if kind == "nimble" else ["true", "false"]  # pyrefly: ignore[unsupported-operation]
    (path / "decision.json").write_text(json.dumps(settings))
    (path / "decision_template.jinja").write_text(OURS.replace("LABEL", LABEL if kind == "nimble" else "'-'"))
    found = []
    for model in (file, path):
        with Engine.from_pretrained(model, progress=False, **SMALL_ENGINE | {"dtype": "float32"}) as engine:
            found.append([engine.decide(state, composed(QUESTIONS)).answers for state in composed(STATES)])
    assert found[0] == found[1]


def test_labels_that_are_no_token_are_passed_over(tmp_path: Path) -> None:
    path = tiny_checkpoint(tmp_path / "model", "qwen3", vocab_size=2048)
    file = write_gguf(tmp_path / "model.gguf", path, fields=fields("nimble"))
    with Engine.from_pretrained(file, progress=False, **SMALL_ENGINE) as engine:
        codes = [*string.ascii_uppercase, *map("".join, itertools.product(string.ascii_uppercase, repeat=2))]
        single = sum(len(engine.tokenizer.encode(code, add_special_tokens=False)) == 1 for code in codes)
        assert 2 < single < len(codes)
        options = {str(number): None for number in range(single + 1)}
        with pytest.raises(RequestError, match=f"it has {single}"):
            engine.decide("Rain.", {"q": {"type": "choice", "criteria": options}})
        options.popitem()
        answer = engine.decide("Rain.", {"q": {"type": "choice", "criteria": options}}).answers["q"]
        assert len(answer.probabilities) == single  # pyrefly: ignore[missing-attribute]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"qwen3.decision.type": 3.0}, "decision.type 3.0 is not served"),
        (fields("lev"), "decision.type 'lev' is not served; known are openjev, nimble, pplx-decider"),
        (fields("nimble", "{{ state }}{{ questions }}"), "lists all questions of a request before each"),
        ({"qwen3.decision.type": "nimble"}, r"chat_template\.systemone is missing"),
        (fields("nimble", noul=0.0), "a temperature must be a number above 0"),
        (fields("nimble", noul="hot"), "Expected `float`"),
    ],
)  # fmt: skip
def test_what_is_not_served_is_said_in_a_sentence(tmp_path: Path, given: dict[str, Any], message: str) -> None:
    path = tiny_checkpoint(tmp_path / "model", "qwen3", vocab_size=2048)
    file = write_gguf(tmp_path / "model.gguf", path, fields=given)
    with pytest.raises(ModelError, match=message):
        Engine.from_pretrained(file, progress=False, **SMALL_ENGINE).tokenizer  # noqa: B018 - it is read when asked for
