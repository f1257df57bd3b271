"""Recipes of rerank: what a reranker reads and which tokens answer. A new recipe is one more entry here.

A score is the probability of the second label among the two: the softmax, which is the sigmoid of the difference of
their logits. Of a classification head with one row it is that row's sigmoid.
"""

import hashlib
import re
from dataclasses import dataclass

_RETRIEVE = "Given a web search query, retrieve relevant passages that answer the query"
_JUDGE = (
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided. Note that the "
    'answer can only be "yes" or "no".'
)
_RELEVANCE = (
    "You are a search relevance expert who evaluates how well documents match search queries. For each query-document "
    "pair, carefully analyze the semantic relationship between them, then provide your binary relevance judgment (0 "
    "for not relevant, 1 for relevant).\nRelevance:"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What a reranker reads, which tokens answer, and how a checkpoint says that it is of this kind.

    `{query}` and `{instruction}` stand for what a request gives. Each piece is tokenised by itself, except that the
    document is tokenised together with the piece before it and the first one after it.

    Attributes:
        name: What replies call it, and `--rerank-template` takes.
        before: Pieces before the document.
        after: Pieces after it.
        instruction: What documents are judged by where a request does not say.
        instructed: What becomes `{instruction}`: `{}` is the text. Without an instruction it is left out.
        labels: The words for irrelevant and relevant; none: only classification heads have this recipe.
        system: The system message, where the pieces are a message that the model's own chat template frames; None where
            the pieces are the whole prompt.
        add_special_tokens: Whether those are added that the tokenizer adds.
        words: Texts of `before` and `after` that must be single tokens.
        names: Pattern of the names that checkpoints of this kind have, in lower case with `-` between words.
        families: Beginnings of architectures that have this recipe if nothing in the checkpoint speaks against it.
    """

    name: str
    before: tuple[str, ...]
    after: tuple[str, ...] = ("",)
    instruction: str | None = _RETRIEVE
    instructed: str = "{}"
    labels: tuple[str, ...] = ("no", "yes")
    system: str | None = None
    add_special_tokens: bool = False
    words: tuple[str, ...] = ()
    names: str | None = None
    families: tuple[str, ...] = ()

    def pieces(self, query: str, instruction: str | None) -> tuple[str, ...]:
        """Return the pieces before the document."""
        instruction = instruction or self.instruction
        told = "" if instruction is None else self.instructed.format(instruction)
        return tuple(piece.format(query=query, instruction=told) for piece in self.before)

    def reads(self, prompt: str) -> bool:
        """Return whether this is the whole prompt, with `{query}` and `{document}` where a request's stand."""
        whole = "".join([*self.pieces("{query}", None), "{document}", *self.after])
        return self.system is None and prompt == whole


_QUESTION = "<Instruct>: {instruction}\n<Query>: {query}\n<Document>: "

# https://huggingface.co/Qwen/Qwen3-Reranker-0.6B, README.md
QWEN3_RERANKER = Recipe(
    name="qwen3-reranker",
    before=(f"<|im_start|>system\n{_JUDGE}<|im_end|>\n<|im_start|>user\n{_QUESTION}",),
    after=("<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",),
    words=("<|im_start|>", "<|im_end|>", "<think>", "</think>"),
    names=r"qwen-?3-reranker",
    families=("Qwen3",),
)

# https://github.com/mixedbread-ai/mxbai-rerank at 8e709dc, mxbai_rerank/mxbai_rerank_v2.py: it joins ids, so that no
# token reaches across the ends of the pieces.
MXBAI_RERANK_V2 = Recipe(
    name="mxbai-rerank-v2",
    before=(
        "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
        "<|im_start|>user\n",
        "{instruction}query: {query}",
        "\n",
        "document: ",
    ),
    after=("", "\n", _RELEVANCE, "<|im_end|>\n<|im_start|>assistant\n"),
    instruction=None,
    instructed="instruction: {}\n",
    labels=("0", "1"),
    words=("<|im_start|>", "<|im_end|>"),
    names=r"mxbai-rerank-(\w+-)*v2",
)

GENERIC = Recipe(name="generic", before=(_QUESTION,), system=_JUDGE)

PLAIN = Recipe(name="plain", before=("{query}\n",), labels=(), add_special_tokens=True)

RECIPES = {recipe.name: recipe for recipe in (QWEN3_RERANKER, MXBAI_RERANK_V2, GENERIC, PLAIN)}
"""By name."""

CUSTOM = Recipe(name="custom", before=())
"""Stands for a template that the operator gave as a file, which says what is read."""

OTHERS = re.compile(
    r"zerank|jina-reranker|bge-reranker|gte-(multilingual-)?rerank|nemo(tron|retriever)[\w-]*-rerank|nv-rerank|"
    r"ctxl-rerank|lb-reranker|qwen-?3-vl-reranker|e2rank|reasonrank|\brank1-\d|\brank(-r1|-?zephyr|-?vicuna|-?llama)\b"
)
"""Names of rerankers whose recipes are other ones, in lower case with `-` between words."""

ANY_RERANKER = re.compile(r"rerank|text-ranking|cross-?encoder|\branker\b")
"""Names and tags of rerankers, whatever their recipe."""


def recipes_digest() -> str:
    """Return a digest of all recipes, which changes when scores may: of what is read, and of who has which recipe."""
    rules = repr([*RECIPES.values(), OTHERS.pattern, ANY_RERANKER.pattern])
    return hashlib.blake2b(rules.encode(), digest_size=8).hexdigest()
