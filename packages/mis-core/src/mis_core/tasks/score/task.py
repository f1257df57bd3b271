"""The task `score`: from the fields of a request to what the engine computes, or to the error that says what to change.

Checks run in the order of the error table of the HTTP reference,
cheap ones before any text is tokenised; status codes are not known here.
"""

import numpy as np
from jaxtyping import Int32

from mis_core.errors import RequestError
from mis_core.requests import ScoreRequest
from mis_core.tasks.fields.body import check_model, read_body, read_field
from mis_core.tasks.fields.item_errors import ItemErrors
from mis_core.tasks.fields.labels import Labels, label_matrix, read_labels
from mis_core.tasks.fields.token_rows import TokenRows
from mis_core.tasks.fields.values import check_characters, check_count, check_names
from mis_core.tasks.limits import Limits
from mis_core.tasks.path.task import Fields, ServedModels, Task
from mis_core.tasks.score.inputs import IdInputs, TextInputs, check_total, read_inputs
from mis_core.tasks.score.label_sequences import LabelSequences
from mis_core.tasks.score.options import LaidOutScoreBody, ScoreBody, check_options, layout_of
from mis_core.tasks.score.parsed import ParsedScore
from mis_core.tasks.score.result import ScoreResult
from mis_core.tasks.score.scores import finish_score
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
    declared = LaidOutScoreBody if limits.layouts else ScoreBody
    check_names(body, tuple(declared.__struct_fields__))
    per_item = read_field(declared, "on_error", body) == "item"
    inputs = read_inputs(body, tokenizer, limits, per_item=per_item)
    given = read_labels(body, inputs.errors.count, limits.head_labels)
    _check_texts(inputs, given, tokenizer, limits)
    labels = given.look_up(tokenizer, limits.head_labels) if limits.head_labels else given.look_up_sequences(tokenizer)
    inputs = inputs.below(limits.vocab_size)
    labels.check_below(limits.head_rows, "number of rows of the head," if limits.head_labels else "vocabulary size")
    sequences = LabelSequences.of(labels) if given.texts and labels.is_nested else None
    options = read_body(declared, body)
    check_model(options.model, served_models)
    check_options(options)
    _check_counts(inputs.errors.count, labels, sequences, limits)
    layout = layout_of(options)
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
    return ParsedScore(request, requests, items, sequences)


def _has_text(fields: Fields) -> bool:
    return isinstance(fields.get("query"), str) or fields.get("labels") is not None


SCORE: Task[ParsedScore, ScoreResult] = Task("score", parse_score_request, finish_score, _has_text)


def _check_not_pairs(body: Fields) -> None:
    name = next((name for name in _PAIRS if name in body), None)
    if name is not None:
        raise RequestError(
            "unknown_parameter",
            f"{name} belongs to vLLM's score, one relevance for each pair: POST /v1/rerank ranks documents for a query "
            "here. /v1/score wants query, items, and label_token_ids or labels.",
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
        what = "scores" if sequences is None else "values that are read, as some have several tokens"
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
