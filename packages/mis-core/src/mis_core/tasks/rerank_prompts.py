"""Prompts of rerank: what comes before a document and what comes behind it, by the model and its options."""

import hashlib
from dataclasses import dataclass
from typing import Any

from mis_core.errors import RequestError
from mis_core.scoring.limits import Limits
from mis_core.tokenization import Tokenizer
from mis_core.tokenization.chat_template import ChatTemplate

INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
"""What a document is judged by where a request does not say."""

_SYSTEM = (
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided. Note that the "
    'answer can only be "yes" or "no".'
)
# As on the model card of Qwen3-Reranker, byte for byte.
_QWEN3_PREFIX = f"<|im_start|>system\n{_SYSTEM}<|im_end|>\n<|im_start|>user\n"
_QWEN3_SUFFIX = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
_QWEN3_TOKENS = ("<|im_start|>", "<|im_end|>", "<think>", "</think>")
_LABELS = ("no", "yes")
_NO_TEMPLATE = "This model has no chat template; give one with --rerank-template or --chat-template."


@dataclass(frozen=True, slots=True)
class RerankPrompt:
    """A prompt with a gap for the document.

    Attributes:
        before: Text before the document, which all documents share.
        after: Text behind it.
        add_special_tokens: Whether those are added that the tokenizer adds; a template writes them itself.
    """

    before: str
    after: str
    add_special_tokens: bool = False


def rerank_prompt(query: str, instruction: str, tokenizer: Tokenizer, limits: Limits) -> RerankPrompt:
    """Return the prompt of a query.

    The template that the operator gave, else that of Qwen3-Reranker where architecture and vocabulary are Qwen3's,
    else the model's chat template with the same texts; without one, a classification head reads query and document.

    Raises:
        RequestError: `task_not_supported`; the model has no template, or its template does not fit.
    """
    user = f"<Instruct>: {instruction}\n<Query>: {query}\n<Document>: "
    # A placeholder that no query can hold.
    document = "\ue000" + hashlib.sha256(user.encode()).hexdigest() + "\ue001"
    if tokenizer.rerank_template is not None:
        variables = {"query": query, "instruction": instruction, "document": document}
        return _rendered(tokenizer.rerank_template, [], document, variables)
    if _is_qwen3(tokenizer, limits):
        return RerankPrompt(_QWEN3_PREFIX + user, _QWEN3_SUFFIX)
    if tokenizer.chat_template is not None:
        messages = [{"role": "system", "content": _SYSTEM}, {"role": "user", "content": user + document}]
        return _rendered(tokenizer.chat_template, messages, document, {"enable_thinking": False})
    if limits.head_labels:
        return RerankPrompt(f"{query}\n", "", add_special_tokens=True)
    raise _unsupported(_NO_TEMPLATE)


def rerank_labels(tokenizer: Tokenizer, limits: Limits) -> list[int]:
    """Return what is read behind a prompt: the tokens `no` and `yes`, or the rows of a classification head.

    Raises:
        RequestError: `task_not_supported`; a word is not one token, or the head has more than two rows.
    """
    rows = len(limits.head_labels)
    if rows > len(_LABELS):
        raise _unsupported(f"The model's head has {rows} rows; reranking needs one, or two of which the second is yes.")
    if rows:
        return list(range(rows))
    try:
        return [tokenizer.label_id(text) for text in _LABELS]
    except RequestError:
        message = "The words yes and no are not single tokens of this model; a reranker with a classification head is."
        raise _unsupported(message) from None


def why_no_rerank(tokenizer: Tokenizer, limits: Limits) -> str | None:
    """Return why a model has no prompt or no labels to rerank with; None if it has. Renders no template."""
    has_template = tokenizer.rerank_template is not None or tokenizer.chat_template is not None
    if not (has_template or limits.head_labels or _is_qwen3(tokenizer, limits)):
        return _NO_TEMPLATE
    try:
        rerank_labels(tokenizer, limits)
    except RequestError as error:
        return error.message
    return None


def _is_qwen3(tokenizer: Tokenizer, limits: Limits) -> bool:
    """Whether the model reads Qwen3-Reranker's prompt as it was trained to: other Qwen3 models read it as well."""
    words = _QWEN3_TOKENS if limits.head_labels else (*_QWEN3_TOKENS, *_LABELS)
    known = all(len(tokenizer.within(None).encode(word, add_special_tokens=False)) == 1 for word in words)
    return known and limits.architecture.startswith("Qwen3")


def _rendered(
    template: ChatTemplate, messages: list[dict[str, str]], document: str, variables: dict[str, Any]
) -> RerankPrompt:
    try:
        text = template.render(messages, **variables)
    except RequestError as error:
        raise _unsupported(error.message) from None
    before, *rest = text.split(document)
    if len(rest) != 1:
        raise _unsupported(f"The model's template writes the document {len(rest)} times; it must do so once.")
    if not before:
        raise _unsupported("The model's template writes nothing before the document; the query comes first.")
    return RerankPrompt(before, rest[0])


def _unsupported(message: str) -> RequestError:
    return RequestError("task_not_supported", message, "model")
