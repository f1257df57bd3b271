"""The task `score`: from the fields of a request to what the engine computes, and from label logits to scores.

Checks run in the order of the error table of the HTTP reference,
cheap ones before any text is tokenised; status codes are not known here.
"""

import time

import numpy as np
from jaxtyping import Float64, Int32

from mis_core.calibration import Calibrations, Identity
from mis_core.errors import RequestError
from mis_core.requests import EngineOutput, Layout, ScoreRequest
from mis_core.tasks.fields.body import check_model, read_body, read_field
from mis_core.tasks.fields.item_errors import ItemErrors
from mis_core.tasks.fields.labels import Labels, label_matrix, read_labels
from mis_core.tasks.fields.token_rows import TokenRows
from mis_core.tasks.fields.values import check_characters, check_count, check_names
from mis_core.tasks.limits import Limits
from mis_core.tasks.path.task import Fields, ServedModels, Task
from mis_core.tasks.probabilities import applied, label_log_softmax, label_logprobs, label_softmax
from mis_core.tasks.score.body import LaidOutScoreBody, ScoreBody
from mis_core.tasks.score.inputs import IdInputs, TextInputs, check_total, read_inputs
from mis_core.tasks.score.label_sequences import LabelSequences
from mis_core.tasks.score.parsed import ParsedScore
from mis_core.tasks.score.result import ScoreResult
from mis_core.tasks.usage import Usage
from mis_core.tokenization import NOTHING, Joined, Tokenizer

_PAIRS = ("queries", "documents", "text_1", "text_2", "data_1", "data_2")
"""Fields of the route that has the same path in vLLM: one relevance for each pair."""


def parse_score_request(
    body: Fields, tokenizer: Tokenizer | None, limits: Limits, served_models: ServedModels = None
) -> ParsedScore:
    """Validate the fields of a request, and tokenise its texts; see `Task.parse`.

    Ids that were read before come as `TokenRows`, nested for `items`, not for `query`; none is empty as a whole.
    """
    _check_not_pairs(body)
    if limits.only_task is not None and (other := limits.why_not("score")):
        raise RequestError("task_not_supported", other, "model")
    declared = LaidOutScoreBody if limits.layouts else ScoreBody
    check_names(body, tuple(declared.__struct_fields__))
    per_item = read_field(declared, "on_error", body) == "item"
    inputs = read_inputs(body, tokenizer, limits, per_item=per_item)
    given = read_labels(body, inputs.errors.count, limits.head_labels)
    _check_texts(inputs, given, tokenizer, limits)
    labels = given.look_up(tokenizer, limits.head_labels) if limits.head_labels else given.look_up_sequences(tokenizer)
    inputs = inputs.below(limits.vocab_size)
    rows = len(limits.head_labels)
    labels.check_below(rows or limits.vocab_size, "number of rows of the head," if rows else "vocabulary size")
    sequences = LabelSequences.of(labels) if given.texts and labels.is_nested else None
    options = read_body(declared, body)
    check_model(options.model, served_models)
    if options.temperature != 1.0 and not options.apply_softmax:
        raise RequestError("invalid_temperature", "A temperature other than 1 needs apply_softmax.", "temperature")
    _check_counts(inputs.errors.count, labels, sequences, limits)
    layout = _layout_of(options)
    query = inputs.query_tokens if limits.identified and options.item_first else None
    if inputs.errors.any_left and limits.delimiter is not None:
        inputs = inputs.delimited(limits.delimiter, options.item_first, options.add_special_tokens)
    joined = _join(inputs, sequences, options, limits)
    items = inputs.errors
    request = ScoreRequest(
        *joined,
        _label_ids(labels, sequences, items),
        apply_softmax=options.apply_softmax,
        temperature=options.temperature,
        return_token_logprobs=options.return_token_logprobs,
        return_layout=options.return_layout,
        cache_salt=options.cache_salt,
        layout=layout,
        empty_items=0 if options.item_first else inputs.num_empty,
    )
    requests = (request if sequences is None else sequences.segments(request),) if request.num_items else ()
    identity = _identity(labels, sequences, options, limits.delimiter) if limits.identified else None
    begins = None if identity is None else request.query
    if identity is not None and options.item_first:  # so that no token of the query is shared
        begins = query
    return ParsedScore(request, requests, items, sequences, identity, begins)


def finish_score(
    parsed: ParsedScore, outputs: tuple[EngineOutput, ...], calibrations: Calibrations | None = None
) -> ScoreResult:
    """Turn what the engine computed into the request's scores; see `Task.finish`.

    Without `apply_softmax` a score is the label's probability over the full vocabulary, the
    exponential of its log-probability. With it, a score is the softmax over the item's labels, in
    which the full-vocabulary normaliser cancels. A label of several tokens has the probability of its whole sequence,
    and the softmax is over these. A softmax may be calibrated. Finite logits never make NaN or infinity.

    In a model with a classification head, the head's rows take the place of the vocabulary. With one row, the
    probability is the sigmoid of its logit, because its normaliser (`runner.head`) counts the other class.
    """
    began = time.perf_counter()
    request, items = parsed.request, parsed.items
    output = outputs[0] if outputs else _nothing(request)
    logprobs = label_logprobs(output) if output.log_sum_exp is not None or request.needs_log_sum_exp else None
    logits = output.logits
    if parsed.sequences is not None:
        assert logprobs is not None, "sequences need log_sum_exp"
        logits = logprobs = parsed.sequences.logprobs(logprobs)
    entry = None if calibrations is None else calibrations.find(parsed.identity, parsed.begins)
    if entry is not None:
        scores = entry.apply(score_logprobs(parsed, output)).astype(np.float32)
    elif request.apply_softmax:
        scores = label_softmax(logits, request.label_ids >= 0, request.temperature)
    else:
        assert logprobs is not None, "without softmax, needs_log_sum_exp is true"
        scores = np.exp(logprobs)
    if len(request.label_ids) == request.num_items:  # perhaps rows of different lengths
        for values in (scores, logprobs):
            if values is not None:
                values[request.label_ids < 0] = np.nan
    return ScoreResult(
        scores=items.spread(scores),
        token_logprobs=items.spread(logprobs) if logprobs is not None and request.return_token_logprobs else None,
        usage=Usage(request.prompt_tokens, output.cached_tokens),
        timings_ms={**output.timings_ms, "finish": (time.perf_counter() - began) * 1e3},
        algorithm=output.algorithm,
        reason=output.reason,
        steps=output.steps,
        segments=sum(each.num_items for each in parsed.requests),
        contexts=len(np.unique(request.context_lens[request.context_lens > 0])),
        query_tokens=int(request.context_lens.max(initial=0)),
        placements=None if output.placements is None else _of_items(output.placements, parsed),
        errors=items.errors,
        calibration=applied(calibrations, entry),
    )


def score_logprobs(parsed: ParsedScore, output: EngineOutput) -> Float64[np.ndarray, "items labels"]:
    """Return the logarithms of the probabilities of labels among themselves, which calibrations are fitted to."""
    logits = output.logits if parsed.sequences is None else parsed.sequences.logprobs(label_logprobs(output))
    return label_log_softmax(logits, parsed.request.label_ids >= 0)


def _has_text(fields: Fields) -> bool:
    return isinstance(fields.get("query"), str) or fields.get("labels") is not None


SCORE: Task[ParsedScore, ScoreResult] = Task("score", parse_score_request, finish_score, _has_text)


def _identity(
    labels: TokenRows, sequences: LabelSequences | None, options: ScoreBody, delimiter: int | None
) -> Identity | None:
    """Return what was asked, where the answer is a softmax over labels that all items have."""
    if not options.apply_softmax or options.temperature != 1.0 or options.calibration == "none":
        return None
    if sequences is None and labels.is_nested:
        return None
    lens = np.ones(len(labels.values), np.int64) if sequences is None else labels.lens
    each = np.split(labels.values, np.cumsum(lens)[:-1])
    if len(each) < 2:
        return None
    return Identity(
        task="score",
        labels=tuple(tuple(ids.tolist()) for ids in each),
        item_first=options.item_first,
        add_special_tokens=options.add_special_tokens,
        delimiter=delimiter,
    )


def _layout_of(options: ScoreBody) -> Layout:
    """Return the layout that a request chooses; refuse what does not go together."""
    if not isinstance(options, LaidOutScoreBody):
        return Layout()
    if options.mask_impl == "dense" and options.scoring_algorithm not in (None, "auto", "packed"):
        raise RequestError("invalid_mask_impl", "mask_impl dense needs scoring_algorithm packed.", "mask_impl")
    return Layout(options.scoring_algorithm, options.mask_impl, options.multi_item_scoring_chunk_size)


def _check_not_pairs(body: Fields) -> None:
    name = next((name for name in _PAIRS if name in body), None)
    if name is not None:
        raise RequestError(
            "unknown_parameter",
            f"{name} is a field of vLLM's score, which rates pairs. Here, POST /v1/rerank ranks documents for a query; "
            "/v1/score takes query, items, and label_token_ids or labels.",
            name,
        )


def _check_texts(inputs: IdInputs | TextInputs, labels: Labels, tokenizer: Tokenizer | None, limits: Limits) -> None:
    """Refuse texts that cannot be tokenised, and more than may be, before any is."""
    check_characters(limits.max_text_characters, **inputs.texts, labels=labels.texts)
    check_count(len(labels.texts), limits.max_labels, "labels", "labels", "too_many_labels")
    if tokenizer is None and (inputs.texts or (labels.texts and not limits.head_labels)):
        raise RequestError("invalid_query_type", "This engine has no tokenizer: send token ids, not text.", "query")


def _check_counts(num_items: int, labels: TokenRows, sequences: LabelSequences | None, limits: Limits) -> None:
    check_count(num_items, limits.max_items, "items", "items")
    count = labels.longest if sequences is None else len(sequences.lens)
    check_count(count, limits.max_labels, "labels", labels.param, "too_many_labels")
    scores = num_items * (count if sequences is None else sequences.num_reads * sequences.width)
    if scores > limits.max_scores:
        what = "scores" if sequences is None else "values, since some labels have several tokens"
        raise RequestError(
            "too_many_labels",
            f"{num_items} items with up to {count} labels make {scores} {what}; at most {limits.max_scores} "
            "are allowed. Split the items over several requests.",
            labels.param,
        )


def _join(
    inputs: IdInputs | TextInputs, sequences: LabelSequences | None, options: ScoreBody, limits: Limits
) -> Joined:
    """Tokenise, and make the segments of the items that nothing is wrong with."""
    joined = NOTHING
    if inputs.errors.any_left:
        appended = 0 if sequences is None else int(sequences.appended.max())
        joined = inputs.join(options.item_first, options.add_special_tokens, limits, appended)
    if sequences is not None:
        check_total(sequences.count_tokens(joined), limits)
    return joined


def _label_ids(
    labels: TokenRows, sequences: LabelSequences | None, items: ItemErrors
) -> Int32[np.ndarray, "label_rows labels"]:
    """Return the labels of the items that are scored; of labels of several tokens, where each begins."""
    if sequences is not None:
        return sequences.first_tokens
    matrix = label_matrix(labels)
    return matrix[items.kept] if labels.is_nested else matrix


def _of_items(placements: Int32[np.ndarray, "placements 6"], parsed: ParsedScore) -> Int32[np.ndarray, "placements 6"]:
    """Return placements with the items that were sent in place of segments: several labels have several segments."""
    (computed,) = parsed.requests
    segments = placements[:, 3]
    items = parsed.items.kept[segments // (computed.num_items // parsed.request.num_items)]
    renamed = placements.copy()
    renamed[:, 3] = np.where(segments < 0, segments, items)
    return renamed


def _nothing(request: ScoreRequest) -> EngineOutput:
    """Return the output of a request without items."""
    return EngineOutput(np.empty((0, request.label_ids.shape[1]), np.float32), np.empty(0, np.float32))
