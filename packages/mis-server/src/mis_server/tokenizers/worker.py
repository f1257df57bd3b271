"""What tokenizer processes do: from the bytes of a body to what its route needs. Arguments and results travel."""

from collections.abc import Mapping
from typing import Any

import msgspec

from mis_core.errors import RequestError
from mis_core.scoring.limits import Limits
from mis_core.scoring.request import ScoreRequest
from mis_core.scoring.token_rows import read_row
from mis_core.scoring.validation import check_characters, parse_score_request
from mis_core.tokenization import Tokenizer
from mis_server.edge.decoding import decode_object, decode_score_body

_TOKENIZE_FIELDS = ("prompt", "model", "add_special_tokens", "return_token_strs")
_DETOKENIZE_FIELDS = ("tokens", "model")


def score_request(body: bytes, limits: Limits, models: tuple[str, ...], tokenizer: Tokenizer) -> ScoreRequest:
    """Read and tokenise the body of `/v1/score`.

    Raises:
        RequestError: the request breaks the contract.
    """
    return parse_score_request(decode_score_body(body), tokenizer, limits, models)


def tokenized(
    body: bytes, model: str, most_characters: int, most_tokens: int, context_length: int | None, tokenizer: Tokenizer
) -> bytes:
    """Return the reply to `/tokenize`.

    Args:
        body: Of the request.
        model: The served model.
        most_characters: Of a text.
        most_tokens: Of a reply.
        context_length: What the reply says of the model; None before the engine was ready.
        tokenizer: The model's.

    Raises:
        RequestError: the request breaks the contract, or is too long.
    """
    fields = _read(body, _TOKENIZE_FIELDS, model)
    prompt = fields.get("prompt")
    if not isinstance(prompt, str):
        raise RequestError("invalid_prompt", "prompt must be a text.", "prompt")
    special = _bool(fields, "add_special_tokens", default=True)
    wants_strings = _bool(fields, "return_token_strs", default=False)
    check_characters(most_characters, prompt=[prompt])
    tokens = tokenizer.encode(prompt, special)
    _check_count(len(tokens), most_tokens, "prompt")
    reply = {  # the words of `TokenizeReply`
        "count": len(tokens),
        "max_model_len": context_length,
        "tokens": tokens.tolist(),
        "token_strs": tokenizer.spelled(tokens) if wants_strings else None,
    }
    return msgspec.json.encode(reply)


def detokenized(
    body: bytes, model: str, most_characters: int, most_tokens: int, vocab_size: int | None, tokenizer: Tokenizer
) -> bytes:
    """Return the reply to `/detokenize`.

    Args:
        body: Of the request.
        model: The served model.
        most_characters: Of a reply.
        most_tokens: Of a request.
        vocab_size: Ids are below it; None: those that the tokenizer knows.
        tokenizer: The model's.

    Raises:
        RequestError: the request breaks the contract, or is too long.
    """
    fields = _read(body, _DETOKENIZE_FIELDS, model)
    tokens = fields.get("tokens")
    if not isinstance(tokens, list):
        raise RequestError("invalid_tokens", "tokens must be a list of token ids.", "tokens")
    _check_count(len(tokens), most_tokens, "tokens")
    rows = read_row("tokens", tokens)
    rows.check_below(tokenizer.vocab_size if vocab_size is None else vocab_size)
    text = tokenizer.decode(rows.values)
    check_characters(most_characters, tokens=[text])
    return msgspec.json.encode({"prompt": text})  # the words of `DetokenizeReply`


def _read(body: bytes, known: tuple[str, ...], served_model: str) -> Mapping[str, Any]:
    fields = decode_object(body)
    for name in fields:
        if name not in known:
            raise RequestError("unknown_parameter", f"Unknown field. Known fields: {', '.join(known)}.", name[:64])
    model = fields.get("model")
    if model is not None and not isinstance(model, str):
        raise RequestError("invalid_model_type", "model must be a text.", "model")
    if model and model != served_model:
        raise RequestError("model_not_found", "This model is not served; GET /v1/models lists what is.", "model")
    return fields


def _bool(fields: Mapping[str, Any], name: str, *, default: bool) -> bool:
    value = fields.get(name, default)
    if not isinstance(value, bool):
        raise RequestError("invalid_prompt", f"{name} must be true or false.", name)
    return value


def _check_count(count: int, most: int, param: str) -> None:
    if count > most:
        raise RequestError("too_many_tokens", f"{count} tokens; at most {most} are allowed.", param)
