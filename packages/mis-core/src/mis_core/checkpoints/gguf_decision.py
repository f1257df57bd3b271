"""Decisions of GGUF files, whose header says how they are asked, as llama.cpp's server reads it.

Source: `tools/server/server-decision.cpp` of llama.cpp at 3cafcc83 (October 2026). Its types `openjev`, `nimble` and
`pplx-decider` read the logits of label tokens behind the prompt; the others have heads or prompts of their own.
"""

import itertools
import re
import string
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mis_core.checkpoints.checkpoint import StoredDecision
from mis_core.checkpoints.decision_files import KINDS
from mis_core.errors import ModelError, shown

TEMPLATE = "tokenizer.chat_template.systemone"
"""Field of the template."""

_UPPER = string.ascii_uppercase
_CODES = [*_UPPER, *map("".join, itertools.product(_UPPER, repeat=2))]
_LABELS = {"openjev": [*_UPPER, *string.ascii_lowercase], "nimble": _CODES, "pplx-decider": _CODES}

# What a template of llama.cpp reads, made of what templates of transformers get.
_OPTION = "{'key': option, 'description': question.descriptions[loop.index0]%s}"
_LABEL = ", 'label': question.labels[loop.index0]"
_BEFORE = (
    "{%%- set id, type, instructions, images = question.name, question.type, question.instructions, [] -%%}"
    "{%%- set made = namespace(options=[]) -%%}"
    "{%%- for option in question.options -%%}{%%- set made.options = made.options + [%s] -%%}{%%- endfor -%%}"
    "{%%- set options = made.options -%%}{{- '' }}"  # an expression, behind which nothing is trimmed
)
_AFTER = "{{ '<|mark|>' }}"


def decision_of(path: Path, kind: object, template: Any, temperatures: Mapping[str, Any]) -> StoredDecision:
    """Return what a header says of decisions, as the files of a directory would.

    Args:
        path: The file, for errors.
        kind: `<architecture>.decision.type`.
        template: What the header has as `TEMPLATE`; None if nothing.
        temperatures: By `<type>` or `<type>.<number of options>`.

    Raises:
        ModelError: it is a model of another kind, or a value is of another type.
    """
    if not isinstance(kind, str) or kind not in _LABELS:
        known = ", ".join(_LABELS)
        raise ModelError(f"{path}: decision.type {shown(repr(kind), 40)} is not served; known are {known}.")
    if not isinstance(template, str):
        raise ModelError(f"{path}: {TEMPLATE} is missing; a decision model has this template.")
    if "questions" in _variables(template):
        raise ModelError(
            f"{path}: the template lists all questions of a request before each one, so answers would depend on the "
            "other questions; such templates are not supported."
        )
    settings = {
        "labels": dict.fromkeys(KINDS, _LABELS[kind]),
        "temperature": {name: _number(value) for name, value in temperatures.items()},
        "noul_options": ["true", "false"] if kind == "openjev" else ["false", "true"],
    }
    option = _OPTION % ("" if kind == "openjev" else _LABEL)
    template = template.replace("\r\n", "\n").removesuffix("\n")  # the last newline is no part of it
    template = re.sub(r"\A[ \t]+(?=\{[%#](?!\+))", "", template)  # nor is what stands before a block in its line
    source = "its fields of decisions"
    return StoredDecision(settings, _BEFORE % option + template + _AFTER, source=source, as_llama_cpp=True)


def _variables(template: str) -> frozenset[str]:
    from transformers.utils.chat_template_utils import _get_template_variables  # slow to import

    try:
        return frozenset(_get_template_variables(template))
    except Exception:  # of any kind; why it cannot be compiled is said where it is
        return frozenset()


def _number(value: Any) -> Any:
    """Return a temperature, which may be stored as text."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return value
