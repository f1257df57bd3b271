"""What tokenizer processes do for `/tokenize` and `/detokenize`: from a body to the encoded parts of its reply."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from mis_core.errors import RequestError
from mis_core.tasks.fields.token_rows import read_row
from mis_core.tasks.fields.values import check_characters, read_optional_text
from mis_core.tokenization import Tokenizer
from mis_server.tokenizers.decoding import decode_object

_TOKENIZE_FIELDS = ("prompt", "model", "add_special_tokens", "return_token_strs")
_DETOKENIZE_FIELDS = ("tokens", "model")


class Tokens(NamedTuple):
    """The tokens of a text; lists are JSON already, because encoding them takes time."""

    count: int
    ids: bytes
    strings: bytes | None


def tokenize(body: bytes, model: str, max_characters: int, max_tokens: int, tokenizer: Tokenizer) -> Tokens:
    """Read and tokenise the body of `/tokenize`.

    Args:
        body: The request's body.
        model: Name of the served model.
        max_characters: Longest text.
        max_tokens: Most tokens of a reply.
        tokenizer: The model's tokenizer.

    Raises:
        RequestError: the request breaks the contract, or is too long.
    """
    fields = _read(body, _TOKENIZE_FIELDS, model)
    prompt = fields.get("prompt")
    if not isinstance(prompt, str):
        raise RequestError("invalid_prompt", "prompt must be a text.", "prompt")
    special = _bool(fields, "add_special_tokens", default=True)
    wants_strings = _bool(fields, "return_token_strs", default=False)
    check_characters(max_characters, prompt=[prompt])
    tokens = tokenizer.within(None).encode(prompt, special)  # as they are, so that people can see them
    _check_count(len(tokens), max_tokens, "prompt")
    strings = msgspec.json.encode(tokenizer.spelled(tokens)) if wants_strings else None
    return Tokens(len(tokens), msgspec.json.encode(tokens.tolist()), strings)


def detokenize(
    body: bytes, model: str, max_characters: int, max_tokens: int, vocab_size: int | None, tokenizer: Tokenizer
) -> bytes:
    """Read and decode the body of `/detokenize`; return its text as JSON.

    Args:
        body: The request's body.
        model: Name of the served model.
        max_characters: Longest text of a reply.
        max_tokens: Most tokens of a request.
        vocab_size: Ids are below it; None: below the tokenizer's own.
        tokenizer: The model's tokenizer.

    Raises:
        RequestError: the request breaks the contract, or is too long.
    """
    fields = _read(body, _DETOKENIZE_FIELDS, model)
    tokens = fields.get("tokens")
    if not isinstance(tokens, list):
        raise RequestError("invalid_tokens", "tokens must be a list of token ids.", "tokens")
    _check_count(len(tokens), max_tokens, "tokens")
    rows = read_row("tokens", tokens)
    rows.check_below(tokenizer.vocab_size if vocab_size is None else vocab_size)
    text = tokenizer.decode(rows.values)
    check_characters(max_characters, tokens=[text])
    return msgspec.json.encode(text)


def _read(body: bytes, known: tuple[str, ...], served_model: str) -> Mapping[str, Any]:
    fields = decode_object(body)
    for name in fields:
        if name not in known:
            raise RequestError("unknown_parameter", f"Unknown field. Known fields: {', '.join(known)}.", name[:64])
    model = read_optional_text(fields, "model")
    if model and model != served_model:
        raise RequestError("model_not_found", "This model is not served; GET /v1/models lists the served one.", "model")
    return fields


def _bool(fields: Mapping[str, Any], name: str, *, default: bool) -> bool:
    value = fields.get(name, default)
    if not isinstance(value, bool):
        raise RequestError("invalid_prompt", f"{name} must be true or false.", name)
    return value


def _check_count(count: int, most: int, param: str) -> None:
    if count > most:
        raise RequestError("too_many_tokens", f"{count} tokens; at most {most} are allowed.", param)
