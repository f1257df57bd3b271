"""The task `rerank`: how well each of many documents answers a query, by the recipe that the model was trained with.

The query is the prompt up to the document; an item is a document and what follows it. A document that is too long is
cut, never what follows it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int32, Int64
from scipy.special import expit

from mis_core.errors import RequestError
from mis_core.requests import EngineOutput, ScoreRequest
from mis_core.tasks.fields.body import check_model, read_body, read_element
from mis_core.tasks.fields.item_errors import ItemErrors, SortedItems
from mis_core.tasks.fields.values import check_characters
from mis_core.tasks.limits import Limits
from mis_core.tasks.path.task import Task
from mis_core.tasks.probabilities import label_softmax
from mis_core.tasks.recipes.recognition import rerank_labels, rerank_recipe
from mis_core.tasks.rerank.body import Document, RerankBody
from mis_core.tasks.rerank.prompts import RerankPrompt, rerank_prompt
from mis_core.tasks.rerank.ranking import (
    ApiVersion,
    BilledUnits,
    CachedTokens,
    RankedDocument,
    RankedText,
    RankedTokens,
    Ranking,
    RerankMeta,
    RerankUsage,
)
from mis_core.tasks.served import check_task
from mis_core.tokenization import Joined, Refuse, Tokenizer


@dataclass(frozen=True, slots=True, eq=False)
class ParsedRerank:
    """What the engine computes, and what the answer needs beside it.

    Attributes:
        request: An item for each document that is scored.
        documents: Which documents these are.
        texts: All documents as they were sent, if they are to be returned; of those not scored, nothing.
        truncated: Places of the documents that were cut, rising.
        top_n: How many of the best are returned; None for all.
        recipe: Name of the recipe that the prompts were made by.
    """

    request: ScoreRequest
    documents: SortedItems
    texts: dict[int, str] | None
    truncated: tuple[int, ...]
    top_n: int | None
    recipe: str

    @property
    def requests(self) -> tuple[ScoreRequest]:
        """What the engine computes: one request."""
        return (self.request,)


def parse_rerank(
    fields: Mapping[str, object],
    tokenizer: Tokenizer | None,
    limits: Limits,
    served_models: tuple[str, ...] | None = None,
) -> ParsedRerank:
    """Validate the fields of a request, and make and tokenise its prompts.

    Args:
        fields: The JSON object of `POST /v1/rerank`, or keyword arguments of the same names.
        tokenizer: The model's.
        limits: What the request may ask for.
        served_models: Names that the field `model` may have; None allows every name.

    Raises:
        RequestError: the request breaks the contract, or no document can be scored.
    """
    body = read_body(RerankBody, fields)
    check_task("rerank", tokenizer, limits)
    assert tokenizer is not None, "as checked"
    check_model(body.model, served_models)
    query, instruction = body.query, body.instruction
    if len(body.documents) > limits.max_items:
        message = f"{len(body.documents)} documents; at most {limits.max_items} are allowed."
        raise RequestError("too_many_items", message, "documents")
    documents = ItemErrors("documents", len(body.documents), per_item=body.on_error == "item")
    texts = documents.read_each(body.documents, _read_document)
    check_characters(limits.max_text_characters, query=[query], documents=texts, instruction=[instruction or ""])
    _check_any_left(documents)
    if instruction:
        tokenizer.encode(instruction, field="instruction")  # only to name it: in the prompt it is a part of the query
    recipe = rerank_recipe(tokenizer, limits)
    labels = rerank_labels(recipe, tokenizer, limits)
    prompt = rerank_prompt(recipe, query, instruction, tokenizer)
    sent = dict(zip(documents.kept.tolist(), texts, strict=True))
    joined, cut = _join(prompt, texts, body.max_tokens_per_doc, documents, tokenizer, limits)
    _check_any_left(documents)
    kept = documents.kept.tolist()
    texts = [sent[index] for index in kept]
    return ParsedRerank(
        ScoreRequest(*joined, np.array([labels], np.int32), apply_softmax=True, cache_salt=body.cache_salt),
        documents.sorted(),
        dict(zip(kept, texts, strict=True)) if body.return_documents else None,
        tuple(index for index, text, whole in zip(kept, cut, texts, strict=True) if text != whole),
        body.top_n,
        recipe.name,
    )


def finish_rerank(parsed: ParsedRerank, outputs: tuple[EngineOutput, ...]) -> Ranking:
    """Sort the documents by what the engine computed.

    Raises:
        FloatingPointError: the engine's values are not finite.
    """
    (output,) = outputs
    if not np.isfinite(output.logits).all():
        raise FloatingPointError("The engine returned values that are not finite.")
    relevance = _relevance(parsed.request, output)
    best = np.argsort(-relevance, kind="stable")[: parsed.top_n]
    results = []
    for index, score in zip(parsed.documents.kept[best].tolist(), relevance[best].tolist(), strict=True):
        document = None if parsed.texts is None else RankedText(parsed.texts[index])
        results.append(RankedDocument(index, score, document))
    tokens = parsed.request.prompt_tokens
    return Ranking(
        tuple(results),
        parsed.documents.errors,
        RerankUsage(tokens, tokens, CachedTokens(output.cached_tokens)),
        RerankMeta(ApiVersion(), BilledUnits.of(parsed.documents.count), RankedTokens(tokens), parsed.truncated),
        parsed.recipe,
    )


RERANK: Task[ParsedRerank, Ranking] = Task("rerank", parse_rerank, finish_rerank)


def _relevance(request: ScoreRequest, output: EngineOutput) -> Float64[np.ndarray, " items"]:
    """Return the probability of the last label, the relevant one; of a head with one row, that row's sigmoid."""
    if output.logits.shape[1] == 1:
        return expit(output.logits[:, 0].astype(np.float64))
    return label_softmax(output.logits, request.label_ids)[:, -1].astype(np.float64)


def _read_document(index: int, document: object) -> str:
    read = read_element(RerankBody, "documents", index, document)
    return read.text if isinstance(read, Document) else read


def _check_any_left(documents: ItemErrors) -> None:
    if not documents.any_left:
        error = documents.sorted().errors[0]
        raise RequestError(error.code, error.message, error.param)


def _join(
    prompt: RerankPrompt,
    texts: list[str],
    most_tokens: int | None,
    documents: ItemErrors,
    tokenizer: Tokenizer,
    limits: Limits,
) -> tuple[Joined, list[str]]:
    """Tokenise the prompts; return the segments of those that are kept, and their documents as they were cut to fit."""
    special = prompt.add_special_tokens
    head, tail = _ids(prompt.head, tokenizer), _ids(prompt.tail, tokenizer)
    context = limits.context_length - len(head) - len(tail)
    room = context - len(tokenizer.encode(prompt.before + prompt.after, special, field="query"))
    if room < 1:
        most = limits.context_length
        message = f"The prompt with the query has {most - room} tokens; the context holds {most} with a document."
        raise RequestError("context_length_exceeded", message, "query")
    cut = list(texts)
    if most_tokens is not None:
        cut = tokenizer.cut_after(
            "", texts, [most_tokens] * len(texts), max_characters=limits.max_text_characters, field="documents"
        )
    # Hardly any text has more tokens than bytes; one that has is found below.
    excess = np.array([len(text.encode()) > room for text in cut], np.int64)
    rooms = room + excess

    def refuse(is_bad: np.ndarray, error: Callable[[int, int], RequestError]) -> Int64[np.ndarray, " rows"]:
        nonlocal cut, rooms
        rows = documents.refuse(is_bad, error)
        cut, rooms = [cut[row] for row in rows.tolist()], rooms[rows]
        return rows

    while True:
        rooms -= excess
        if (rooms < 0).any():
            raise RequestError("context_length_exceeded", "The query leaves no room for a document.", "query")
        long = np.flatnonzero(excess > 0).tolist()
        # Together with what is before them, as their beginnings may be one token with that.
        shorter = tokenizer.cut_after(
            prompt.before,
            [cut[row] for row in long],
            rooms[long].tolist(),
            max_characters=limits.max_text_characters,
            field="documents",
        )
        for row, text in zip(long, shorter, strict=True):
            cut[row] = text
        joined = _joined(prompt, cut, (head, tail), refuse, tokenizer, limits)
        excess = np.maximum(joined.context_lens + np.diff(joined.item_starts) - limits.context_length, 0)
        if not excess.any():
            return joined, cut


def _ids(texts: tuple[str, ...], tokenizer: Tokenizer) -> Int32[np.ndarray, " tokens"]:
    """Return the ids of texts that are each tokenised by itself."""
    ids = [tokenizer.encode(text, add_special_tokens=False, field="query") for text in texts]
    return np.concatenate([np.empty(0, np.int32), *ids])


def _joined(
    prompt: RerankPrompt,
    texts: list[str],
    frame: tuple[Int32[np.ndarray, " query_tokens"], Int32[np.ndarray, " tail_tokens"]],
    refuse: Refuse,
    tokenizer: Tokenizer,
    limits: Limits,
) -> Joined:
    head, tail = frame
    joined = tokenizer.join(
        prompt.before,
        [text + prompt.after for text in texts],
        add_special_tokens=prompt.add_special_tokens,
        max_characters=limits.max_text_characters,
        fields=("query", "documents"),
        refuse=refuse,
    )
    items = len(joined.item_starts) - 1
    tokens = len(head) + len(joined.query) + len(joined.item_tokens) + items * len(tail)
    if tokens > limits.max_request_tokens:
        message = f"Query and documents have {tokens} tokens; at most {limits.max_request_tokens} are allowed."
        raise RequestError("too_many_tokens", message, "documents")
    return joined.framed(head, tail)
