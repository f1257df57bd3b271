"""Classification: the probabilities of a classification head's labels at the end of whole texts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, cast

import numpy as np
from jaxtyping import Float32
from msgspec import Meta
from scipy.special import expit, softmax

from mis_core.config import Activation
from mis_core.errors import RequestError
from mis_core.requests import EngineOutput, ScoreRequest
from mis_core.tasks.fields.body import (
    NO_EFFECT,
    TYPE,
    AddSpecialTokens,
    Body,
    ModelName,
    Text,
    Tokens,
    about,
    check_model,
    read_body,
    refused,
)
from mis_core.tasks.fields.token_rows import ROW_TYPES, TokenRows, read_rows
from mis_core.tasks.fields.values import (
    check_characters,
    check_count,
    has_text,
    kind,
    readable,
)
from mis_core.tasks.limits import Limits
from mis_core.tasks.path.task import Fields, ServedModels, Task
from mis_core.tasks.probabilities import check_finite
from mis_core.tasks.served import check_task
from mis_core.tasks.usage import Usage
from mis_core.tokenization import Tokenizer
from mis_core.tokenization.joined import whole_sequences

_ACTIVATION = ("use_activation", "activation", "softmax")  # names of one field: vLLM's, and those that it had before


class ClassifyBody(Body, frozen=True, kw_only=True):
    """Fields of `POST /v1/classify`."""

    input: Annotated[
        Any,
        about(
            "What to classify. Each input is one whole sequence, and none may be empty.",
            noun="a text, a list of texts, or lists of token ids",
            schemas=(
                Text,
                Annotated[list[Text], Meta(min_length=1)],
                Tokens,
                Annotated[list[Tokens], Meta(min_length=1)],
            ),
        ),
    ]
    model: ModelName = None
    add_special_tokens: AddSpecialTokens = True
    use_activation: Annotated[bool | None, about("Return probabilities; false returns the head's raw values.")] = True
    activation: Annotated[bool | None, about("The same as `use_activation`.")] = None
    softmax: Annotated[bool | None, about("The same as `use_activation`.")] = None
    cache_salt: Annotated[
        str | None, about("Accepted as on every route. Whole sequences are not cached.", wrong=TYPE)
    ] = None
    priority: Annotated[int | None, NO_EFFECT] = None
    request_id: Annotated[str | None, NO_EFFECT] = None
    user: Annotated[str | None, NO_EFFECT] = None
    messages: Annotated[None, refused()] = None
    truncate_prompt_tokens: Annotated[None, refused()] = None


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
    body = read_body(ClassifyBody, fields)
    check_task("classify", tokenizer, limits)
    check_model(body.model, served_models)
    activation = limits.head_activation if _activates(fields) else "identity"
    inputs = _read_inputs(body.input, tokenizer, body.add_special_tokens, limits)
    inputs.check_below(limits.vocab_size)
    limits.check_lens(inputs.lens, "input")
    request = ScoreRequest(
        *whole_sequences(inputs.values.astype(np.int32), inputs.lens),
        np.arange(len(limits.head_labels), dtype=np.int32)[None],
        apply_softmax=True,  # no normaliser: the activation has all rows
        cache_salt=body.cache_salt,
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


def _activates(fields: Fields) -> bool:
    given = {name: bool(fields[name]) for name in _ACTIVATION if fields.get(name) is not None}
    if len(set(given.values())) > 1:
        name = min(given, key=_ACTIVATION.index)
        raise RequestError(f"invalid_{name}", f"{' and '.join(given)} mean the same and must not differ.", name)
    return all(given.values())


def _read_inputs(value: object, tokenizer: Tokenizer | None, special: bool, limits: Limits) -> TokenRows:
    """Return the ids of every input."""
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
