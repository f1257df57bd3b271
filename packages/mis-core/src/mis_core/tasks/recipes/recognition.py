"""Which recipe a reranker has: the operator's choice, else what the checkpoint says, else by its vocabulary."""

import re
from dataclasses import dataclass
from functools import lru_cache

from mis_core.checkpoints import Sign, Signs
from mis_core.errors import RequestError
from mis_core.tasks.limits import Limits
from mis_core.tasks.recipes.recipe import ANY_RERANKER, CUSTOM, GENERIC, OTHERS, PLAIN, RECIPES, Recipe
from mis_core.tokenization import Tokenizer

_ROWS = 2
_SHOWN = 60  # characters of a name
_NO_TEMPLATE = "This model has no chat template; give one with --rerank-template or --chat-template."
_CHOOSE = f"Known recipes: {', '.join(RECIPES)}. Choose one with --rerank-template, or give a template as a file."


def rerank_recipe(tokenizer: Tokenizer, limits: Limits) -> Recipe:
    """Return the recipe of a model.

    Raises:
        RequestError: `task_not_supported`; the model says that it has another recipe, or it cannot have this one.
    """
    if tokenizer.rerank_template is not None:
        recipe = CUSTOM
    elif limits.rerank_recipe is not None:
        recipe = RECIPES[limits.rerank_recipe]
    else:
        recipe = _recognised(tokenizer, limits)
        _check_prompt(recipe, limits.signs)
    _check(recipe, tokenizer, limits)
    return recipe


def rerank_labels(recipe: Recipe, tokenizer: Tokenizer, limits: Limits) -> list[int]:
    """Return what is read after a prompt: the tokens of the labels, or the rows of a classification head.

    Of two rows the second is the relevant one, unless they have the names of the labels.

    Raises:
        RequestError: `task_not_supported`; a word is not one token, or the head has more than two rows.
    """
    rows = len(limits.head_labels)
    if rows > _ROWS:
        raise unsupported(f"The model's head has {rows} rows; reranking needs one, or two with yes as the second.")
    if rows:
        answers, names = recipe.labels or GENERIC.labels, [name.lower() for name in limits.head_labels]
        return [names.index(word) for word in answers] if sorted(names) == sorted(answers) else list(range(rows))
    try:
        return [tokenizer.label_id(text) for text in recipe.labels]
    except RequestError:
        words = " and ".join(recipe.labels)
        message = (
            f"The words {words} are not single tokens of this model, so it cannot rerank without a classification head."
        )
        raise unsupported(message) from None


def describe_rerank(tokenizer: Tokenizer, limits: Limits) -> str:
    """Return a line for the log: the recipe that was taken, or why there is none."""
    try:
        return f"recipe {rerank_recipe(tokenizer, limits).name}"
    except RequestError as error:
        return f"none. {error.message}"


def _recognised(tokenizer: Tokenizer, limits: Limits) -> Recipe:
    """Return the recipe that nobody has chosen."""
    said = _read(limits.signs)
    if said.refusal is not None:
        raise unsupported(said.refusal)
    named = None if said.recipe is None else RECIPES[said.recipe]
    if named is not None:
        _check_answers(named, tokenizer, limits)
        return named
    family = _of_family(tokenizer, limits)
    if family is not None and limits.signs.answer_ids is not None:
        _check_answers(family, tokenizer, limits)
        return family
    if said.doubt is not None and not limits.head_labels:  # whose rows are read, whatever their names
        raise unsupported(said.doubt)
    if family is not None:
        return family
    if tokenizer.chat_template is not None:
        return GENERIC
    if limits.head_labels:
        return PLAIN
    raise unsupported(_NO_TEMPLATE)


@dataclass(frozen=True, slots=True)
class _Said:
    """What signs mean.

    Attributes:
        recipe: Name of the recipe that they name.
        refusal: Why they rule out all recipes.
        doubt: Why a language model without a recipe's name is no chat model.
    """

    recipe: str | None = None
    refusal: str | None = None
    doubt: str | None = None


@lru_cache(maxsize=16)  # a model's are the same with every request
def _read(signs: Signs) -> _Said:
    """Return what signs mean: those inside the checkpoint, else the name of its folder."""
    inside = _named(signs.names)
    if inside is None:
        inside = _named((Sign("The name of the model's folder or file", signs.location),))
    return inside or _Said(doubt=_doubt(signs))


def _named(signs: tuple[Sign, ...]) -> _Said | None:
    """Return what is said of one recipe or of several; None if nothing is."""
    for sign in signs:
        if OTHERS.search(_words(sign.text)):
            return _Said(refusal=_other(sign))
    found = {
        recipe.name: sign.where
        for sign in signs
        for recipe in RECIPES.values()
        if recipe.names is not None and re.search(recipe.names, _words(sign.text))
    }
    if len(found) > 1:
        said = " and ".join(f"{name} ({where})" for name, where in found.items())
        return _Said(refusal=f"The checkpoint names several recipes of rerank: {said}. {_CHOOSE}")
    return next((_Said(name) for name in found), None)


def _doubt(signs: Signs) -> str | None:
    """Return what says that a model is a reranker, or no language model, and does not say which recipe it has."""
    for sign in signs.names:
        if ANY_RERANKER.search(_words(sign.text)):
            return _other(sign)
    if signs.answer_ids is not None:
        return f"A config.json of sentence-transformers names the tokens of another recipe. {_CHOOSE}"
    around = (name for name in signs.modules if name != "Transformer")
    return next((_other(Sign("modules.json", name)) for name in around), None)


def _of_family(tokenizer: Tokenizer, limits: Limits) -> Recipe | None:
    """Return the recipe of all models of this architecture whose vocabulary has its words."""
    for recipe in RECIPES.values():
        words = recipe.words if limits.head_labels else (*recipe.words, *recipe.labels)
        if recipe.families and limits.architecture.startswith(recipe.families) and _all_known(words, tokenizer):
            return recipe
    return None


def _check_answers(recipe: Recipe, tokenizer: Tokenizer, limits: Limits) -> None:
    """Refuse a model whose own files say that other tokens answer."""
    answers = limits.signs.answer_ids
    if answers is None or limits.head_labels:
        return
    if list(answers) != rerank_labels(recipe, tokenizer, limits):
        read = " and ".join(repr(tokenizer.decode([each])) for each in answers if each is not None) or "nothing"
        message = f"The model's sentence-transformers settings read {read}; the recipe {recipe.name} does not."
        raise unsupported(f"{message} {_CHOOSE}")


def _check_prompt(recipe: Recipe, signs: Signs) -> None:
    """Refuse a recipe where the model brings the prompt of another."""
    if signs.rerank_prompt is not None and not recipe.reads(signs.rerank_prompt):
        message = f"The file's tokenizer.chat_template.rerank is not the prompt of the recipe {recipe.name}."
        raise unsupported(f"{message} {_CHOOSE}")


def _check(recipe: Recipe, tokenizer: Tokenizer, limits: Limits) -> None:
    """Refuse a recipe that the model cannot have."""
    if recipe.system is not None and tokenizer.chat_template is None:
        raise unsupported(_NO_TEMPLATE)
    if recipe.system is not None and tokenizer.chat_template is not None and tokenizer.chat_template.fault is not None:
        fault = tokenizer.chat_template.fault
        raise unsupported(f"The model's chat template cannot be compiled: {fault} Give another with --chat-template.")
    if not _all_known(recipe.words, tokenizer):
        words = ", ".join(recipe.words)
        raise unsupported(f"The recipe {recipe.name} needs {words} as single tokens, which this model does not have.")
    if not recipe.labels and not limits.head_labels:
        raise unsupported(
            f"The recipe {recipe.name} is for models with a classification head, which this one does not have."
        )
    rerank_labels(recipe, tokenizer, limits)


def _all_known(words: tuple[str, ...], tokenizer: Tokenizer) -> bool:
    # A word that the model lacks still says which recipe it has; its prompts are then refused.
    return all(len(tokenizer.within(None).label_ids(word)) == 1 for word in words)


def _words(name: str) -> str:
    """Return a name in lower case, its words with one `-` between them: `Zerank 2` and `zerank_2` are the same."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower())


def _other(sign: Sign) -> str:
    shown = sign.text if len(sign.text) <= _SHOWN else sign.text[:_SHOWN] + "…"
    return f"{sign.where} says {shown!r}, and no recipe of rerank is known for that. {_CHOOSE}"


def unsupported(message: str) -> RequestError:
    """Return the error of a model that does not rerank, or not in this way."""
    return RequestError("task_not_supported", message, "model")
