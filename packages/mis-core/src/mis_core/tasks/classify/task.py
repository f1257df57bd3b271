"""Classification of inputs: the probabilities of a head's labels at the end of each."""

from dataclasses import dataclass

import msgspec
import numpy as np
from jaxtyping import Float32, Float64

from mis_core.calibration import Calibrations, Identity, label_tuples, log_softmax
from mis_core.config import Activation
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
from mis_core.tasks.probabilities import applied, log_sigmoid
from mis_core.tasks.served import check_task
from mis_core.tasks.usage import Usage
from mis_core.tokenization import Tokenizer


@dataclass(frozen=True, slots=True, eq=False)
class ParsedClassify:
    """Inputs as the engine computes them, and how they are to be answered.

    Attributes:
        requests: What the engine computes: one request, in which every input is an item of its own, without a query,
            so that none changes the bits of another.
        labels: Names of the head's rows.
        activation: How probabilities are made of its values.
        identity: What a calibration must have been fitted for; None: there can be none.
    """

    requests: tuple[ScoreRequest]
    labels: tuple[str, ...]
    activation: Activation
    identity: Identity | None = None


@dataclass(frozen=True, slots=True, eq=False)
class ClassifyResult:
    """Labels in the order of the inputs.

    Attributes:
        labels: The most probable label of each input, the first among equals.
        probabilities: Probabilities of all labels, or the head's values where the activation is `identity`,
            `[inputs, labels]`.
        usage: Token counts.
        calibration: Digest of the calibration of the probabilities, None if they have none; absent where none is
            loaded.
    """

    labels: tuple[str, ...]
    probabilities: Float32[np.ndarray, "inputs labels"]
    usage: Usage
    calibration: str | msgspec.UnsetType | None = msgspec.UNSET


def parse_classify(
    fields: Fields, tokenizer: Tokenizer | None, limits: Limits, served_models: ServedModels = None
) -> ParsedClassify:
    """Validate the fields of a request, and tokenise its texts; see `Task.parse`."""
    body = read_body(ClassifyBody, fields)
    check_task("classify", tokenizer, limits)
    check_model(body.model, served_models)
    activation = activation_of(fields, limits)
    inputs = read_inputs(body.input, tokenizer, limits)
    if isinstance(inputs, list):
        assert tokenizer is not None, "texts without one are refused"
        inputs = rows_of(*tokenizer.encode_all(inputs, body.add_special_tokens, field="input"))
    request = request_of(inputs, limits, body.cache_salt, every_token=False)
    identity = _identity(limits.head_labels, activation, body) if limits.identified else None
    return ParsedClassify((request,), limits.head_labels, activation, identity)


def finish_classify(
    parsed: ParsedClassify, outputs: tuple[EngineOutput, ...], calibrations: Calibrations | None = None
) -> ClassifyResult:
    """Turn the head's values into probabilities, in float64; see `Task.finish`."""
    (request,), (output,) = parsed.requests, outputs
    values = output.logits.astype(np.float64)
    probabilities = activated(values, parsed.activation)
    best = values.argmax(axis=1)  # before an activation makes equals of large values
    entry = None if calibrations is None else calibrations.find(parsed.identity)
    if entry is not None:
        probabilities = entry.apply(classify_logprobs(values))[:, -values.shape[1] :]
        best = probabilities.argmax(axis=1)
    return ClassifyResult(
        labels=tuple(parsed.labels[row] for row in best),
        probabilities=probabilities.astype(np.float32),
        usage=Usage(request.prompt_tokens, output.cached_tokens),
        calibration=applied(calibrations, entry),
    )


def classify_logprobs(values: Float64[np.ndarray, "inputs values"]) -> Float64[np.ndarray, "inputs labels"]:
    """Return the log-probabilities of labels; for a head with one row, of its sigmoid and of the rest."""
    if values.shape[1] == 1:
        return np.concatenate([log_sigmoid(-values), log_sigmoid(values)], axis=1)
    return log_softmax(values)


def _identity(labels: tuple[str, ...], activation: Activation, body: ClassifyBody) -> Identity | None:
    """Return what was asked, where the answer is a distribution over labels, or over one label and its absence."""
    if body.calibration == "none" or activation != ("sigmoid" if len(labels) == 1 else "softmax"):
        return None
    read = label_tuples(range(len(labels)))
    labels_read = read if len(read) > 1 else ((), *read)
    return Identity(task="classify", labels=labels_read, add_special_tokens=body.add_special_tokens)


CLASSIFY: Task[ParsedClassify, ClassifyResult] = Task("classify", parse_classify, finish_classify, needs_tokenizer)
