"""Prompts of rerank: what comes before a document and what comes after it, by the model's recipe."""

import hashlib
from dataclasses import dataclass
from typing import Any

from mis_core.errors import RequestError
from mis_core.tasks.recipes.recipe import Recipe
from mis_core.tasks.recipes.recognition import unsupported
from mis_core.tokenization import Tokenizer
from mis_core.tokenization.chat_template import ChatTemplate


@dataclass(frozen=True, slots=True)
class RerankPrompt:
    """A prompt with a gap for the document.

    Attributes:
        before: Text before the document, which all documents share.
        after: Text after it.
        head: Texts before all that, each tokenised by itself.
        tail: Texts after all that, likewise.
        add_special_tokens: Whether those are added that the tokenizer adds; a template writes them itself.
    """

    before: str
    after: str
    head: tuple[str, ...] = ()
    tail: tuple[str, ...] = ()
    add_special_tokens: bool = False


def rerank_prompt(recipe: Recipe, query: str, instruction: str | None, tokenizer: Tokenizer) -> RerankPrompt:
    """Return the prompt of a query.

    Raises:
        RequestError: `task_not_supported`; a template does not fit.
    """
    if tokenizer.rerank_template is not None:
        instruction = instruction or recipe.instruction
        document = _placeholder(f"{instruction}\n{query}")
        variables = {"query": query, "instruction": instruction, "document": document}
        return _rendered(tokenizer.rerank_template, [], document, variables)
    *head, before = recipe.pieces(query, instruction)
    after, *tail = recipe.after
    if recipe.system is None:
        return RerankPrompt(before, after, tuple(head), tuple(tail), recipe.add_special_tokens)
    assert tokenizer.chat_template is not None, "as checked with the recipe"
    document = _placeholder(before)
    messages = [
        {"role": "system", "content": recipe.system},
        {"role": "user", "content": before + document + after},
    ]
    return _rendered(tokenizer.chat_template, messages, document, {"enable_thinking": False})


def _placeholder(text: str) -> str:
    """Return a text that the given one cannot hold."""
    return "\ue000" + hashlib.sha256(text.encode()).hexdigest() + "\ue001"


def _rendered(
    template: ChatTemplate, messages: list[dict[str, str]], document: str, variables: dict[str, Any]
) -> RerankPrompt:
    try:
        text = template.render(messages, **variables)
    except RequestError as error:
        raise unsupported(error.message) from None
    before, *rest = text.split(document)
    if len(rest) != 1:
        raise unsupported(f"The model's template writes the document {len(rest)} times; it must do so once.")
    if not before:
        raise unsupported("The model's template writes nothing before the document; the query must come first.")
    return RerankPrompt(before, rest[0])
