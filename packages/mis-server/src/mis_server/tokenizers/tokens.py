"""What tokenizer processes do for `/tokenize` and `/detokenize`: from a body to the encoded parts of its reply."""

from typing import Annotated, Any, NamedTuple

import msgspec

from mis_core.errors import RequestError
from mis_core.tasks.fields.body import Body, ModelName, TokenId, about, check_model, read_body
from mis_core.tasks.fields.token_rows import read_row
from mis_core.tasks.fields.values import check_characters
from mis_core.tokenization import Tokenizer
from mis_server.tokenizers.decoding import decode_object


class TokenizeBody(Body, frozen=True, kw_only=True):
    """Fields of `POST /tokenize`."""

    prompt: Annotated[str, about("The text.", missing="invalid_prompt")]
    model: ModelName = None
    add_special_tokens: Annotated[
        bool, about("Add the tokenizer's special tokens, such as BOS, as scoring does.", wrong="invalid_prompt")
    ] = True
    return_token_strs: Annotated[
        bool, about("Also return the tokens as the vocabulary spells them.", wrong="invalid_prompt")
    ] = False


class DetokenizeBody(Body, frozen=True, kw_only=True):
    """Fields of `POST /detokenize`."""

    tokens: Annotated[
        list[Any],
        about("Token ids.", each=TokenId, noun="a list of token ids", missing="invalid_tokens"),
    ]
    model: ModelName = None


class Tokens(NamedTuple):
    """The tokens of a text; lists are JSON already, because encoding them takes time."""

    count: int
    ids: bytes
    strings: bytes | None


def tokenize(
    body: bytes, models: tuple[str, ...], max_characters: int, max_tokens: int, tokenizer: Tokenizer
) -> Tokens:
    """Read and tokenise the body of `/tokenize`.

    Args:
        body: The request's body.
        models: Names of the served model.
        max_characters: Longest text.
        max_tokens: Most tokens of a reply.
        tokenizer: The model's tokenizer.

    Raises:
        RequestError: the request breaks the contract, or is too long.
    """
    asked = read_body(TokenizeBody, decode_object(body))
    check_model(asked.model or None, models)
    check_characters(max_characters, prompt=[asked.prompt])
    tokens = tokenizer.within(None).encode(asked.prompt, asked.add_special_tokens)  # as they are, for people to see
    _check_count(len(tokens), max_tokens, "prompt")
    strings = msgspec.json.encode(tokenizer.spelled(tokens)) if asked.return_token_strs else None
    return Tokens(len(tokens), msgspec.json.encode(tokens.tolist()), strings)


def detokenize(
    body: bytes,
    models: tuple[str, ...],
    max_characters: int,
    max_tokens: int,
    vocab_size: int | None,
    tokenizer: Tokenizer,
) -> bytes:
    """Read and decode the body of `/detokenize`; return its text as JSON.

    Args:
        body: The request's body.
        models: Names of the served model.
        max_characters: Longest text of a reply.
        max_tokens: Most tokens of a request.
        vocab_size: Ids are below it; None: below the tokenizer's own.
        tokenizer: The model's tokenizer.

    Raises:
        RequestError: the request breaks the contract, or is too long.
    """
    asked = read_body(DetokenizeBody, decode_object(body))
    check_model(asked.model or None, models)
    _check_count(len(asked.tokens), max_tokens, "tokens")
    rows = read_row("tokens", asked.tokens)
    rows.check_below(tokenizer.vocab_size if vocab_size is None else vocab_size)
    text = tokenizer.decode(rows.values)
    check_characters(max_characters, tokens=[text])
    return msgspec.json.encode(text)


def _check_count(count: int, most: int, param: str) -> None:
    if count > most:
        raise RequestError("too_many_tokens", f"{count} tokens; at most {most} are allowed.", param)
