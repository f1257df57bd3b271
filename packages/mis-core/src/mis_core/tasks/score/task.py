"""From the fields of a score request to what the engine computes, or to the error that says what to change.

Checks run in the order of the error table of the HTTP reference,
cheap ones before any text is tokenised; status codes are not known here.
"""

import difflib
from collections.abc import Mapping, Sequence

from mis_core.errors import RequestError
from mis_core.requests import ScoreRequest
from mis_core.tasks.fields.labels import check_label_count, label_matrix, read_labels
from mis_core.tasks.fields.token_rows import TokenRows
from mis_core.tasks.fields.values import (
    read_bool,
    read_layout,
    read_on_error,
    read_optional_text,
    read_temperature,
    shown,
)
from mis_core.tasks.limits import Limits
from mis_core.tasks.score.inputs import check_item_count, check_total, read_inputs
from mis_core.tasks.score.label_sequences import LabelSequences
from mis_core.tasks.score.parsed import ParsedScore
from mis_core.tokenization import NOTHING, Tokenizer

LAYOUT_FIELDS = ("scoring_algorithm", "mask_impl", "multi_item_scoring_chunk_size")
"""Fields of a request that chooses its layout, where the engine lets it."""

FIELDS = (
    "query", "items", "label_token_ids", "labels", "apply_softmax", "item_first", "temperature",
    "return_token_logprobs", "model", "cache_salt", "add_special_tokens", "on_error", "return_layout",
)  # fmt: skip
"""Every field of a request."""


_PAIRS = ("queries", "documents", "text_1", "text_2", "data_1", "data_2")
"""Fields of the route that has the same path in vLLM: one relevance for each pair."""


def parse_score_request(
    body: Mapping[str, object],
    tokenizer: Tokenizer | None,
    limits: Limits,
    served_models: tuple[str, ...] | None = None,
) -> ParsedScore:
    """Validate the fields of a request, and tokenise its texts.

    Args:
        body: The JSON object of `POST /v1/score`, or keyword arguments of the same names. From Python,
            tuples and integer arrays are as good as lists, and NumPy integers as `int`. Ids that were
            read before come as `TokenRows`, nested for `items`, not for `query`; none is empty as a whole.
        tokenizer: Needed for requests with text only.
        limits: What the request may ask for.
        served_models: Names that the field `model` may have; None allows every name.

    Raises:
        RequestError: the request breaks the contract; `code` and `param` say where.
    """
    _check_not_pairs(body)
    check_names(body, FIELDS + LAYOUT_FIELDS if limits.layouts else FIELDS)
    inputs = read_inputs(body, tokenizer, limits, per_item=read_on_error(body))
    num_items = inputs.errors.count
    labels = read_labels(body, num_items, limits.head_labels)
    check_characters(limits.max_text_characters, **inputs.texts, labels=labels.texts)
    check_label_count(len(labels.texts), "labels", limits)  # before each is looked up
    if tokenizer is None and (inputs.texts or (labels.texts and not limits.head_labels)):
        raise RequestError("invalid_query_type", "This engine has no tokenizer: send token ids, not text.", "query")
    is_head = bool(limits.head_labels)
    label_ids = labels.look_up(tokenizer, limits.head_labels) if is_head else labels.look_up_sequences(tokenizer)
    inputs = inputs.below(limits.vocab_size)
    label_ids.check_below(limits.head_rows, "number of rows of the head," if is_head else "vocabulary size")
    sequences = LabelSequences.of(label_ids) if labels.texts and label_ids.is_nested else None
    apply_softmax, item_first, return_token_logprobs, return_layout = (
        read_bool(body, name) for name in ("apply_softmax", "item_first", "return_token_logprobs", "return_layout")
    )
    add_special_tokens = read_bool(body, "add_special_tokens", default=True)
    cache_salt, model = read_optional_text(body, "cache_salt"), read_optional_text(body, "model")
    if model is not None and served_models is not None and model not in served_models:
        raise RequestError("model_not_found", f"Model {shown(model)} is not served here.", "model")
    temperature = read_temperature(body, apply_softmax)
    _check_counts(num_items, label_ids, sequences, limits)
    layout = read_layout(body)
    joined = NOTHING
    if inputs.errors.any_left and limits.delimiter is not None:
        inputs = inputs.as_ids(item_first, add_special_tokens).delimited(limits.delimiter, item_first)
    if inputs.errors.any_left:
        appended = 0 if sequences is None else int(sequences.appended.max())
        joined = inputs.join(item_first, add_special_tokens, limits, appended)
    items = inputs.errors.sorted()
    if sequences is not None:
        check_total(sequences.count_tokens(joined), limits)
        matrix = sequences.first_tokens
    else:
        matrix = label_matrix(label_ids)[items.kept] if label_ids.is_nested else label_matrix(label_ids)
    request = ScoreRequest(
        *joined,
        matrix,
        apply_softmax=apply_softmax,
        temperature=temperature,
        return_token_logprobs=return_token_logprobs,
        return_layout=return_layout,
        cache_salt=cache_salt,
        layout=layout,
        empty_items=0 if item_first else inputs.num_empty,
    )
    return ParsedScore(request, items, sequences)


def check_characters(most: int, **texts: Sequence[str]) -> None:
    """Refuse more text than may be tokenised, before any is.

    Args:
        most: Characters of all texts together.
        texts: Texts by the name of their field.

    Raises:
        RequestError: `too_many_tokens`; names the longest field.
    """
    counts = {name: sum(map(len, field)) for name, field in texts.items()}
    count = sum(counts.values())
    if count > most:
        raise RequestError(
            "too_many_tokens",
            f"{count} characters of text; at most {most} are allowed.",
            max(counts, key=lambda name: counts[name]),
        )


def _check_not_pairs(body: Mapping[str, object]) -> None:
    name = next((name for name in _PAIRS if name in body), None)
    if name is not None:
        raise RequestError(
            "unknown_parameter",
            f"{name} belongs to vLLM's score, one relevance for each pair: POST /v1/rerank ranks documents for a query "
            "here. /v1/score wants query, items, and label_token_ids or labels.",
            name,
        )


def check_names(body: Mapping[str, object], fields: tuple[str, ...]) -> None:
    """Refuse fields that are not known, with the one that may be meant.

    Raises:
        RequestError: `unknown_parameter`.
    """
    for name in body:
        if name not in fields:
            near = difflib.get_close_matches(str(name)[:64], fields, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else f"Known fields: {', '.join(fields)}."
            raise RequestError("unknown_parameter", f"Unknown field {shown(name)}. {hint}", str(name)[:64])


def _check_counts(num_items: int, labels: TokenRows, sequences: LabelSequences | None, limits: Limits) -> None:
    check_item_count(num_items, limits)
    count = labels.longest if sequences is None else len(sequences.lens)
    check_label_count(count, labels.param, limits)
    scores = num_items * (count if sequences is None else sequences.num_reads * sequences.width)
    if scores > limits.max_scores:
        what = "scores" if sequences is None else "values that are read, as some have several tokens"
        raise RequestError(
            "too_many_labels",
            f"{num_items} items with up to {count} labels make {scores} {what}; at most {limits.max_scores} "
            "are allowed. Split the items over several requests.",
            labels.param,
        )
