"""The fields of both routes, the inputs that they hold, and what makes probabilities of a head's values."""

from collections.abc import Sequence
from typing import Annotated, Any, cast

import numpy as np
from jaxtyping import Float64, Int32, Int64
from msgspec import Meta

from mis_core.calibration import softmax
from mis_core.config import Activation
from mis_core.errors import RequestError
from mis_core.requests import ScoreRequest
from mis_core.tasks.fields.body import (
    NO_EFFECT,
    TYPE,
    AddSpecialTokens,
    Body,
    Calibration,
    ModelName,
    Text,
    Tokens,
    about,
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
from mis_core.tasks.path.task import Fields
from mis_core.tasks.probabilities import check_finite, sigmoid
from mis_core.tokenization import Tokenizer
from mis_core.tokenization.joined import whole_sequences

_ACTIVATION = ("use_activation", "activation", "softmax")  # names of one field: vLLM's, and those that it had before


class ClassifyBody(Body, frozen=True, kw_only=True):
    """Fields of `POST /v1/classify` and `POST /v1/token_classify`."""

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
    cache_salt: Annotated[str | None, about("No effect on this route: whole sequences are not cached.", wrong=TYPE)] = (
        None
    )
    priority: Annotated[int | None, NO_EFFECT] = None
    request_id: Annotated[str | None, NO_EFFECT] = None
    user: Annotated[str | None, NO_EFFECT] = None
    calibration: Calibration = None
    messages: Annotated[None, refused()] = None
    truncate_prompt_tokens: Annotated[None, refused()] = None


def needs_tokenizer(fields: Fields) -> bool:
    """Whether some input is a text."""
    return has_text(fields.get("input"))


def activation_of(fields: Fields, limits: Limits) -> Activation:
    """Return what makes probabilities of the head's values: what the model says, unless none are wanted.

    Raises:
        RequestError: two names of one field differ.
    """
    given = {name: bool(fields[name]) for name in _ACTIVATION if fields.get(name) is not None}
    if len(set(given.values())) > 1:
        name = min(given, key=_ACTIVATION.index)
        raise RequestError(f"invalid_{name}", f"{' and '.join(given)} mean the same and must not differ.", name)
    return limits.head_activation if all(given.values()) else "identity"


def activated(values: Float64[np.ndarray, "rows labels"], activation: Activation) -> Float64[np.ndarray, "rows labels"]:
    """Return the probabilities of all labels, or the values themselves.

    Raises:
        FloatingPointError: a value is not finite.
    """
    check_finite(values)
    if activation == "softmax":
        return softmax(values)
    return sigmoid(values) if activation == "sigmoid" else values


def read_inputs(value: object, tokenizer: Tokenizer | None, limits: Limits) -> list[str] | TokenRows:
    """Return the texts of a field `input`, or its ids; none is empty.

    Raises:
        RequestError: it holds something else, or too much.
    """
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
    texts = cast(list[str], rows)
    readable("".join(texts), "input", "invalid_input")
    check_characters(limits.max_text_characters, input=texts)
    if tokenizer is None:
        raise RequestError("invalid_input", "This engine has no tokenizer: send token ids, not text.", "input")
    return texts


def rows_of(tokens: Int32[np.ndarray, " tokens"], lens: Int64[np.ndarray, " texts"]) -> TokenRows:
    """Return the ids of texts as those that a request brings.

    Raises:
        RequestError: a text has none.
    """
    if not lens.all():
        raise RequestError("empty_input", f"input[{int(lens.argmin())}] has no tokens.", "input")
    return TokenRows("input", tokens.astype(np.int64), lens, is_nested=True)


def request_of(inputs: TokenRows, limits: Limits, cache_salt: str | None, *, every_token: bool) -> ScoreRequest:
    """Return what the engine computes: every input is an item of its own, without a query, apart from all others.

    Args:
        inputs: Their ids.
        limits: What the model allows.
        cache_salt: As the request has it.
        every_token: Whether every token of an input is read, or the last one.

    Raises:
        RequestError: an id is not the model's, or an input is too long.
    """
    inputs.check_below(limits.vocab_size)
    limits.check_lens(inputs.lens, "input")
    return ScoreRequest(
        *whole_sequences(inputs.values.astype(np.int32), inputs.lens),
        np.arange(len(limits.head_labels), dtype=np.int32)[None],
        apply_softmax=True,  # no normaliser: the activation has all rows
        cache_salt=cache_salt,
        read_lens=inputs.lens.astype(np.int32) if every_token else None,
    )


def _is_filled(row: object) -> bool:
    return not isinstance(row, (str, *ROW_TYPES)) or len(row) > 0
