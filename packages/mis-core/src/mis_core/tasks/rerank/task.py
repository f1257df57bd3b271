"""The task `rerank`: how well each of many documents answers a query, by the recipe that the model was trained with.

The query is the prompt up to the document; an item is a document and what follows it. A document that is too long is
cut, never what follows it.
"""

from dataclasses import dataclass
from functools import partial

import numpy as np
from jaxtyping import Float64, Int32

from mis_core.calibration import Calibrations, Entry, Identity, digest_of, label_tuples
from mis_core.errors import RequestError
from mis_core.requests import EngineOutput, ScoreRequest
from mis_core.tasks.fields.body import check_model, read_body, read_element
from mis_core.tasks.fields.item_errors import ItemErrors
from mis_core.tasks.fields.values import check_characters, check_count
from mis_core.tasks.limits import Limits
from mis_core.tasks.path.task import Fields, ServedModels, Task
from mis_core.tasks.probabilities import (
    applied,
    check_finite,
    label_log_softmax,
    label_softmax,
    log_sigmoid,
    sigmoid,
)
from mis_core.tasks.recipes.recipe import Recipe
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
from mis_core.tokenization import Joined, Tokenizer


@dataclass(frozen=True, slots=True, eq=False)
class ParsedRerank:
    """What the engine computes, and what the answer needs beside it.

    Attributes:
        requests: What the engine computes: one request, with an item for each document that is scored.
        documents: Which documents these are.
        texts: All documents as they were sent, if they are to be returned; of those not scored, nothing.
        truncated: Places of the documents that were cut, rising.
        top_n: How many of the best are returned; None for all.
        recipe: Name of the recipe that the prompts were made by.
        identity: What a calibration belongs to, where there may be one.
    """

    requests: tuple[ScoreRequest]
    documents: ItemErrors
    texts: dict[int, str] | None
    truncated: tuple[int, ...]
    top_n: int | None
    recipe: str
    identity: Identity | None = None


def parse_rerank(
    fields: Fields, tokenizer: Tokenizer | None, limits: Limits, served_models: ServedModels = None
) -> ParsedRerank:
    """Validate the fields of a request, and make and tokenise its prompts; see `Task.parse`."""
    body = read_body(RerankBody, fields)
    check_task("rerank", tokenizer, limits)
    assert tokenizer is not None, "as checked"
    check_model(body.model, served_models)
    query, instruction = body.query, body.instruction
    check_count(len(body.documents), limits.max_items, "documents", "documents")
    documents = ItemErrors("documents", len(body.documents), per_item=body.on_error == "item")
    read = documents.read_each(body.documents, _read_document)
    texts = dict(zip(documents.kept.tolist(), read, strict=True))
    check_characters(limits.max_text_characters, query=[query], documents=read, instruction=[instruction or ""])
    _check_any_left(documents)
    if instruction:
        tokenizer.encode(instruction, field="instruction")  # only to name it: in the prompt it is a part of the query
    recipe = rerank_recipe(tokenizer, limits)
    labels = rerank_labels(recipe, tokenizer, limits)
    prompt = rerank_prompt(recipe, query, instruction, tokenizer)
    joined, cut = _join(prompt, texts, body.max_tokens_per_doc, documents, tokenizer, limits)
    _check_any_left(documents)
    request = ScoreRequest(*joined, np.array([labels], np.int32), apply_softmax=True, cache_salt=body.cache_salt)
    kept = documents.kept.tolist()
    return ParsedRerank(
        (request,),
        documents,
        {index: texts[index] for index in kept} if body.return_documents else None,
        tuple(index for index in kept if cut[index] != texts[index]),
        body.top_n,
        recipe.name,
        _identity(recipe, labels, body, tokenizer) if limits.identified else None,
    )


def finish_rerank(
    parsed: ParsedRerank, outputs: tuple[EngineOutput, ...], calibrations: Calibrations | None = None
) -> Ranking:
    """Sort the documents by what the engine computed; see `Task.finish`."""
    (request,), (output,) = parsed.requests, outputs
    check_finite(output.logits)
    entry = None if calibrations is None else calibrations.find(parsed.identity)
    relevance = _relevance(request, output, entry)
    best = np.argsort(-relevance, kind="stable")[: parsed.top_n]
    results = []
    for index, score in zip(parsed.documents.kept[best].tolist(), relevance[best].tolist(), strict=True):
        document = None if parsed.texts is None else RankedText(parsed.texts[index])
        results.append(RankedDocument(index, score, document))
    tokens = request.prompt_tokens
    return Ranking(
        tuple(results),
        parsed.documents.errors,
        RerankUsage(tokens, tokens, CachedTokens(output.cached_tokens)),
        RerankMeta(ApiVersion(), BilledUnits.of(parsed.documents.count), RankedTokens(tokens), parsed.truncated),
        parsed.recipe,
        applied(calibrations, entry),
    )


RERANK: Task[ParsedRerank, Ranking] = Task("rerank", parse_rerank, finish_rerank)


def rerank_logprobs(request: ScoreRequest, output: EngineOutput) -> Float64[np.ndarray, "items labels"]:
    """Return the logarithms of the probabilities of irrelevant and relevant; of a head with one row, of its sigmoid."""
    if output.logits.shape[1] == 1:
        value = output.logits[:, 0].astype(np.float64)
        return np.stack([log_sigmoid(-value), log_sigmoid(value)], axis=1)
    return label_log_softmax(output.logits, request.label_ids >= 0)


def _identity(recipe: Recipe, labels: list[int], body: RerankBody, tokenizer: Tokenizer) -> Identity | None:
    if body.calibration == "none":
        return None
    template = tokenizer.rerank_template or (None if recipe.system is None else tokenizer.chat_template)
    prompt = [repr(recipe), body.instruction or None, None if template is None else template.identity]
    read = label_tuples(labels)
    return Identity(task="rerank", labels=read if len(read) > 1 else ((), *read), template=digest_of(prompt))


def _relevance(request: ScoreRequest, output: EngineOutput, entry: Entry | None) -> Float64[np.ndarray, " items"]:
    """Return the probability of the last label, the relevant one; of a head with one row, that row's sigmoid."""
    if entry is not None:
        return entry.apply(rerank_logprobs(request, output))[:, -1]
    if output.logits.shape[1] == 1:
        return sigmoid(output.logits[:, 0].astype(np.float64))
    return label_softmax(output.logits, request.label_ids >= 0)[:, -1].astype(np.float64)


def _read_document(index: int, document: object) -> str:
    read = read_element(RerankBody, "documents", index, document)
    return read.text if isinstance(read, Document) else read


def _check_any_left(documents: ItemErrors) -> None:
    if not documents.any_left:
        error = documents.errors[0]
        raise RequestError(error.code, error.message, error.param)


def _join(
    prompt: RerankPrompt,
    texts: dict[int, str],
    most_tokens: int | None,
    documents: ItemErrors,
    tokenizer: Tokenizer,
    limits: Limits,
) -> tuple[Joined, dict[int, str]]:
    """Tokenise the prompts; return the segments of those that are kept, and all documents as they were cut to fit."""
    special, most_characters = prompt.add_special_tokens, limits.max_text_characters
    cut_after = partial(tokenizer.cut_after, max_characters=most_characters, field="documents")
    head, tail = _ids(prompt.head, tokenizer), _ids(prompt.tail, tokenizer)
    frame = len(head) + len(tail) + len(tokenizer.encode(prompt.before + prompt.after, special, field="query"))
    if frame >= limits.context_length:
        most = limits.context_length
        message = f"The prompt with the query has {frame} tokens; the context holds {most} with a document."
        raise RequestError("context_length_exceeded", message, "query")
    cut, rooms = dict(texts), np.full(documents.count, limits.context_length - frame)
    if most_tokens is not None:
        cut = dict(zip(texts, cut_after("", list(texts.values()), [most_tokens] * len(texts)), strict=True))
    # Hardly any text has more tokens than bytes; one that has is found below.
    long = [index for index, text in cut.items() if len(text.encode()) > limits.context_length - frame]
    while True:
        # Together with what is before them, as their beginnings may be one token with that.
        shorter = cut_after(prompt.before, [cut[index] for index in long], rooms[long].tolist())
        cut |= zip(long, shorter, strict=True)
        joined = tokenizer.join(
            prompt.before,
            [cut[index] + prompt.after for index in documents.kept.tolist()],
            add_special_tokens=special,
            max_characters=most_characters,
            fields=("query", "documents"),
            refuse=documents.refuse,
        )
        tokens = len(head) + len(joined.query) + len(joined.item_tokens) + len(joined.context_lens) * len(tail)
        limits.check_tokens(tokens, "Query and documents", "documents")
        joined = joined.framed(head, tail)
        excess = joined.context_lens + np.diff(joined.item_starts) - limits.context_length
        long = documents.kept[excess > 0].tolist()
        if not long:
            return joined, cut
        rooms[long] -= excess[excess > 0]
        if (rooms[long] < 0).any():
            raise RequestError("context_length_exceeded", "The query leaves no room for a document.", "query")


def _ids(texts: tuple[str, ...], tokenizer: Tokenizer) -> Int32[np.ndarray, " tokens"]:
    """Return the ids of texts that are each tokenised by itself."""
    ids = [tokenizer.encode(text, add_special_tokens=False, field="query") for text in texts]
    return np.concatenate([np.empty(0, np.int32), *ids])
