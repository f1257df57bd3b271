"""Classification of tokens: the probabilities of a head's labels at every token of an input."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32, Int32, Int64

from mis_core.calibration import Calibrations
from mis_core.config import Activation
from mis_core.errors import RequestError
from mis_core.requests import EngineOutput, ScoreRequest
from mis_core.tasks.classify.body import (
    ClassifyBody,
    activated,
    activation_of,
    needs_tokenizer,
    read_inputs,
    request_of,
    rows_of,
)
from mis_core.tasks.fields.body import check_model, read_body
from mis_core.tasks.limits import Limits
from mis_core.tasks.path.task import Fields, ServedModels, Task
from mis_core.tasks.served import check_task
from mis_core.tasks.usage import Usage
from mis_core.tokenization import Tokenizer

TOKEN_VALUES = 16
"""What the other fields of a token cost in a reply, as a number of probabilities."""


@dataclass(frozen=True, slots=True, eq=False)
class Texts:
    """Texts of a request, and where in them their tokens are.

    Attributes:
        inputs: The texts.
        spans: First character of each token, and the first one after it, in its text, `[tokens, 2]`.
    """

    inputs: tuple[str, ...]
    spans: Int32[np.ndarray, "tokens columns"]


@dataclass(frozen=True, slots=True, eq=False)
class ParsedTokens:
    """Inputs as the engine computes them, and how they are to be answered.

    Attributes:
        requests: What the engine computes: one request, of which every token of every item is read.
        texts: What the inputs were; None where they were ids.
        labels: Names of the head's rows.
        activation: How probabilities are made of its values.
    """

    requests: tuple[ScoreRequest]
    texts: Texts | None
    labels: tuple[str, ...]
    activation: Activation


@dataclass(frozen=True, slots=True)
class LabelledToken:
    """One token of an input.

    Attributes:
        id: Its id.
        text: The characters from `start` to `end`, empty for a token that the tokenizer adds; None where ids were sent.
        start: Its first character in the input, as the tokenizer's offsets have it.
        end: The first character after it.
        label: The most probable label, the first among equals.
        probabilities: Probabilities of all labels, or the head's values where the activation is `identity`.
    """

    id: int
    text: str | None
    start: int | None
    end: int | None
    label: str
    probabilities: list[float]


@dataclass(frozen=True, slots=True, eq=False)
class TokenClassifyResult:
    """Labels of all tokens, those of the first input and then those of the next.

    Attributes:
        token_ids: Ids of all inputs, `[tokens]`.
        starts: Where each input begins among them, `[inputs + 1]`.
        texts: What the inputs were; None where they were ids.
        labels: Names of the head's rows.
        best: The row of each token's most probable label, `[tokens]`.
        probabilities: Probabilities of all labels, or the head's values where the activation is `identity`,
            `[tokens, labels]`.
        usage: Token counts.
    """

    token_ids: Int32[np.ndarray, " tokens"]
    starts: Int32[np.ndarray, " inputs_plus_one"]
    texts: Texts | None
    labels: tuple[str, ...]
    best: Int64[np.ndarray, " tokens"]
    probabilities: Float32[np.ndarray, "tokens labels"]
    usage: Usage

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __iter__(self) -> Iterator[list[LabelledToken]]:
        """Yield the tokens of each input."""
        return map(self._tokens_of, range(len(self)))

    def _tokens_of(self, index: int) -> list[LabelledToken]:
        own = slice(self.starts[index], self.starts[index + 1])
        ids, best, probabilities = (each[own].tolist() for each in (self.token_ids, self.best, self.probabilities))
        if self.texts is None:
            bounds: list[tuple[str | None, int | None, int | None]] = [(None, None, None)] * len(ids)
        else:
            text = self.texts.inputs[index]
            bounds = [(text[start:end], start, end) for start, end in self.texts.spans[own].tolist()]
        rows = zip(ids, bounds, best, probabilities, strict=True)
        return [LabelledToken(token, *within, self.labels[row], values) for token, within, row, values in rows]


def parse_tokens(
    fields: Fields, tokenizer: Tokenizer | None, limits: Limits, served_models: ServedModels = None
) -> ParsedTokens:
    """Validate the fields of a request, and tokenise its texts; see `Task.parse`."""
    body = read_body(ClassifyBody, fields)
    check_task("token_classify", tokenizer, limits)
    check_model(body.model, served_models)
    activation = activation_of(fields, limits)
    inputs, texts = read_inputs(body.input, tokenizer, limits), None
    if isinstance(inputs, list):
        assert tokenizer is not None, "texts without one are refused"
        tokens, lens, spans = tokenizer.encode_with_spans(inputs, body.add_special_tokens, field="input")
        inputs, texts = rows_of(tokens, lens), Texts(tuple(inputs), spans)
    most = limits.max_scores // (len(limits.head_labels) + TOKEN_VALUES)
    if (count := int(inputs.lens.sum())) > most:
        message = f"input has {count} tokens; at most {most} are labelled in a request."
        raise RequestError("too_many_tokens", message, "input")
    request = request_of(inputs, limits, body.cache_salt, every_token=True)
    return ParsedTokens((request,), texts, limits.head_labels, activation)


def finish_tokens(
    parsed: ParsedTokens, outputs: tuple[EngineOutput, ...], _: Calibrations | None = None
) -> TokenClassifyResult:
    """Turn the head's values into probabilities, in float64; see `Task.finish`."""
    (request,), (output,) = parsed.requests, outputs
    values = output.logits.astype(np.float64)
    return TokenClassifyResult(
        token_ids=request.item_tokens,
        starts=request.item_starts,
        texts=parsed.texts,
        labels=parsed.labels,
        probabilities=activated(values, parsed.activation).astype(np.float32),
        best=values.argmax(axis=1),  # before an activation makes equals of large values
        usage=Usage(request.prompt_tokens, output.cached_tokens),
    )


TOKEN_CLASSIFY: Task[ParsedTokens, TokenClassifyResult] = Task(
    "token_classify", parse_tokens, finish_tokens, needs_tokenizer
)
