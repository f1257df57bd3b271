"""The field `prompt`: one or several, as texts or as token ids."""

from collections.abc import Sequence
from typing import cast

import numpy as np

from mis_core.errors import RequestError
from mis_core.tasks.fields.token_rows import ROW_TYPES, TokenRows, read_row, read_rows
from mis_core.tasks.fields.values import check_characters, check_count, kind, readable
from mis_core.tasks.limits import Limits
from mis_core.tasks.text.prompt_groups import MAX_GROUPS, Prompts
from mis_core.tokenization import Tokenizer


def read_prompts(prompt: object) -> TokenRows | list[str]:
    """Read one prompt or several, of texts or of ids.

    Raises:
        RequestError: one is empty, of a wrong type, or not of the others' kind.
    """
    prompts = [prompt] if isinstance(prompt, str) else prompt
    if not isinstance(prompts, ROW_TYPES):
        message = f"prompt must be a text, a list of token ids, or a list of either, not {kind(prompt)}."
        raise RequestError("invalid_prompt", message, "prompt")
    if len(prompts) == 0:
        raise RequestError("empty_prompt", "prompt must not be empty.", "prompt")
    kinds = {str if each is str else list if issubclass(each, ROW_TYPES) else int for each in set(map(type, prompts))}
    if len(kinds) > 1:
        raise RequestError("invalid_prompt", "All prompts must be texts, or all of them lists of token ids.", "prompt")
    if kinds == {int}:
        return read_row("prompt", cast(Sequence[object], prompts))
    empty = next((index for index, each in enumerate(cast(Sequence[Sequence[object]], prompts)) if not len(each)), None)
    if empty is not None:
        message = f"prompt[{empty}] is empty." if len(prompts) > 1 else "prompt must not be empty."
        raise RequestError("empty_prompt", message, "prompt")
    if kinds == {list}:
        return read_rows("prompt", cast(Sequence[Sequence[object]], prompts))
    readable("".join(cast(Sequence[str], prompts)), "prompt", "invalid_prompt")
    return list(cast(Sequence[str], prompts))


def tokenize_prompts(
    given: TokenRows | list[str], tokenizer: Tokenizer | None, limits: Limits, draws: int, special: bool
) -> Prompts:
    """Return the ids of the prompts, of which there are not too many.

    Args:
        given: Texts or ids.
        tokenizer: Needed for texts.
        limits: What the request may ask for.
        draws: Tokens drawn from each prompt.
        special: Whether the tokenizer's special tokens are added to texts.

    Raises:
        RequestError: `too_many_items`, `too_many_tokens`, `token_id_exceeds_vocab`, `empty_prompt`, `invalid_prompt`.
    """
    most = limits.max_items if draws == 1 else min(limits.max_items // draws, MAX_GROUPS)
    check_count(len(given), most, f"prompts with {draws} draws each", "prompt")
    if isinstance(given, TokenRows):
        given.check_below(limits.vocab_size)
        return Prompts(given.values.astype(np.int32), given.lens)
    check_characters(limits.max_text_characters, prompt=given)
    if tokenizer is None:
        raise RequestError("invalid_prompt", "This engine has no tokenizer: send token ids.", "prompt")
    prompts = Prompts(*tokenizer.encode_all(given, special, field="prompt"))
    if not prompts.lens.all():
        raise RequestError("empty_prompt", f"prompt[{int(prompts.lens.argmin())}] has no tokens.", "prompt")
    return prompts


def check_lengths(prompts: Prompts, limits: Limits, values: int) -> None:
    """Refuse prompts beyond the context, and more tokens, or `values` in the reply for each, than a request may have.

    Raises:
        RequestError: `context_length_exceeded` or `too_many_tokens`.
    """
    limits.check_lens(prompts.lens, "prompt")
    count = len(prompts.tokens)
    if count * values > limits.max_scores:
        message = (
            f"{count} tokens are echoed with {values} values each; at most {limits.max_scores} in all are allowed. Ask "
            "for fewer logprobs or answers, or split the prompts over several requests."
        )
        raise RequestError("too_many_tokens", message, "prompt")
