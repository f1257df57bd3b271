"""Classification: the probabilities of a classification head's labels at the end of whole texts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
from jaxtyping import Float32
from scipy.special import expit, softmax

from mis_core.config import Activation
from mis_core.errors import RequestError
from mis_core.requests import EngineOutput, ScoreRequest
from mis_core.tasks.fields.openai import check_ignored, check_model, read_flag, refuse_unsupported
from mis_core.tasks.fields.token_rows import ROW_TYPES, TokenRows, read_rows
from mis_core.tasks.fields.values import (
    check_characters,
    check_count,
    check_names,
    has_text,
    kind,
    read_bool,
    read_optional_text,
    readable,
)
from mis_core.tasks.limits import Limits
from mis_core.tasks.path.task import Fields, ServedModels, Task
from mis_core.tasks.probabilities import check_finite
from mis_core.tasks.served import check_task
from mis_core.tasks.usage import Usage
from mis_core.tokenization import Tokenizer
from mis_core.tokenization.joined import whole_sequences

ACTIVATION = ("use_activation", "activation", "softmax")
"""Names of one field: vLLM's, and those that it had before."""

IGNORED = ("priority", "request_id", "user")
"""Fields of vLLM's that change nothing here."""

UNSUPPORTED = {"messages": lambda value: False, "truncate_prompt_tokens": lambda value: False}
"""Fields of vLLM's that are refused, each with what is harmless."""

FIELDS = ("input", "model", "add_special_tokens", "cache_salt", *ACTIVATION, *IGNORED, *UNSUPPORTED)
"""Every field of a request."""


@dataclass(frozen=True, slots=True, eq=False)
class ParsedClassify:
    """Inputs as the engine computes them, and how they are to be answered.

    Attributes:
        requests: What the engine computes: one request, in which every input is an item of its own, without a query,
            so that none changes the bits of another.
        labels: Names of the head's rows.
        activation: What makes probabilities of its values.
    """

    requests: tuple[ScoreRequest]
    labels: tuple[str, ...]
    activation: Activation


@dataclass(frozen=True, slots=True, eq=False)
class ClassifyResult:
    """Labels in the order of the inputs.

    Attributes:
        labels: The most probable label of each input, the first among equals.
        probabilities: Probabilities of all labels, or the head's values where the activation is `identity`,
            `[inputs, labels]`.
        usage: Token counts.
    """

    labels: tuple[str, ...]
    probabilities: Float32[np.ndarray, "inputs labels"]
    usage: Usage


def parse_classify(
    fields: Fields, tokenizer: Tokenizer | None, limits: Limits, served_models: ServedModels = None
) -> ParsedClassify:
    """Validate the fields of a request, and tokenise its texts; see `Task.parse`."""
    check_names(fields, FIELDS)
    check_task("classify", tokenizer, limits)
    check_model(fields, served_models)
    refuse_unsupported(fields, UNSUPPORTED)
    check_ignored(fields, IGNORED)
    special = read_bool(fields, "add_special_tokens", default=True)
    activation = limits.head_activation if _read_activation(fields) else "identity"
    cache_salt = read_optional_text(fields, "cache_salt")
    inputs = _read_inputs(fields.get("input"), tokenizer, special, limits)
    inputs.check_below(limits.vocab_size)
    limits.check_lens(inputs.lens, "input")
    request = ScoreRequest(
        *whole_sequences(inputs.values.astype(np.int32), inputs.lens),
        np.arange(len(limits.head_labels), dtype=np.int32)[None],
        apply_softmax=True,  # no normaliser: the activation has all rows
        cache_salt=cache_salt,
    )
    return ParsedClassify((request,), limits.head_labels, activation)


def finish_classify(parsed: ParsedClassify, outputs: tuple[EngineOutput, ...]) -> ClassifyResult:
    """Turn the head's values into probabilities, in float64; see `Task.finish`."""
    (request,), (output,) = parsed.requests, outputs
    values = output.logits.astype(np.float64)
    check_finite(values)
    best = values.argmax(axis=1)  # before an activation makes equals of large values
    if parsed.activation == "softmax":
        values = softmax(values, axis=1)
    elif parsed.activation == "sigmoid":
        values = expit(values)
    return ClassifyResult(
        labels=tuple(parsed.labels[row] for row in best),
        probabilities=values.astype(np.float32),
        usage=Usage(request.prompt_tokens, output.cached_tokens),
    )


def _needs_tokenizer(fields: Fields) -> bool:
    return has_text(fields.get("input"))


CLASSIFY: Task[ParsedClassify, ClassifyResult] = Task("classify", parse_classify, finish_classify, _needs_tokenizer)


def _read_activation(fields: Fields) -> bool:
    given = {name: read_flag(fields, name) for name in ACTIVATION if fields.get(name) is not None}
    if len(set(given.values())) > 1:
        name = min(given, key=ACTIVATION.index)
        raise RequestError(f"invalid_{name}", f"{' and '.join(given)} mean the same and must not differ.", name)
    return all(given.values())


def _read_inputs(value: object, tokenizer: Tokenizer | None, special: bool, limits: Limits) -> TokenRows:
    """Return the ids of every input, none without any."""
    if value is None:
        raise RequestError("missing_input", "The field input is required: texts, or lists of token ids.", "input")
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, ROW_TYPES) or (isinstance(value, np.ndarray) and value.ndim not in (1, 2)):
        message = f"input must be a text, a list of texts, or lists of token ids, not {kind(value)}."
        raise RequestError("invalid_input", message, "input")
    rows = list(value)
    if rows and not any(isinstance(row, (str, *ROW_TYPES)) for row in rows):
        rows = [value]  # one list of ids
    if not rows or not all(map(_is_filled, rows)):
        raise RequestError("empty_input", "input must not be empty, nor any text or list in it.", "input")
    check_count(len(rows), min(limits.max_items, limits.max_scores // len(limits.head_labels)), "inputs", "input")
    if all(isinstance(row, ROW_TYPES) for row in rows):
        return read_rows("input", cast(list[Sequence[object]], rows))
    if not all(isinstance(row, str) for row in rows):
        message = "input must hold texts only, token ids only, or lists of token ids only."
        raise RequestError("invalid_input", message, "input")
    return _tokenised(cast(list[str], rows), tokenizer, special, limits)


def _is_filled(row: object) -> bool:
    return not isinstance(row, (str, *ROW_TYPES)) or len(row) > 0


def _tokenised(texts: list[str], tokenizer: Tokenizer | None, special: bool, limits: Limits) -> TokenRows:
    readable("".join(texts), "input", "invalid_input")
    check_characters(limits.max_text_characters, input=texts)
    if tokenizer is None:
        raise RequestError("invalid_input", "This engine has no tokenizer: send token ids, not text.", "input")
    tokens, lens = tokenizer.encode_all(texts, special, field="input")
    if not lens.all():
        raise RequestError("empty_input", f"input[{int(lens.argmin())}] has no tokens.", "input")
    return TokenRows("input", tokens.astype(np.int64), lens, is_nested=True)
