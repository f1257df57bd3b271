"""How next tokens are drawn and where an answer ends, from the body of a request."""

import hashlib
import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
from jaxtyping import Int32

from mis_core.errors import RequestError
from mis_core.requests import MAX_BIASES, Sampling
from mis_core.tasks.fields.token_rows import ROW_TYPES, read_row
from mis_core.tasks.fields.values import kind
from mis_core.tasks.text.bodies import MAX_STOP_IDS, AnswerBody
from mis_core.tokenization import Tokenizer

_GREEDY_BELOW = 1e-5  # a temperature; logits that are divided by less overflow
_MOST_DIGITS = 18  # of a token id


@dataclass(frozen=True, slots=True)
class Stops:
    """What ends an answer before it has all its tokens.

    Attributes:
        texts: It ends before the first of these.
        token_ids: It ends with one of these.
        ignore_eos: Whether it goes on behind the tokens with which the model ends answers.
    """

    texts: tuple[str, ...] = ()
    token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False

    def end_ids(self, tokenizer: Tokenizer) -> frozenset[int]:
        """Return the tokens with which an answer ends."""
        return self.token_ids if self.ignore_eos else self.token_ids | tokenizer.end_ids


def sampling_of(body: AnswerBody, draws: int, vocab_size: int) -> Sampling:
    """Return how tokens are drawn.

    A temperature below 0.00001 is 0, and so is a `top_p` so small that one token has it.

    Args:
        body: What the request says.
        draws: How many answers are drawn; answer `i` has the same key whatever their number.
        vocab_size: Ids in `logit_bias` are below this.

    Raises:
        RequestError: `invalid_logit_bias` or `token_id_exceeds_vocab`.
    """
    temperature, top_p = body.temperature, body.top_p
    bias_ids, bias = _read_bias(body.logit_bias, vocab_size)
    if temperature < _GREEDY_BELOW or top_p * vocab_size <= 1:  # the most probable token alone has as much
        temperature, top_p = 0.0, 1.0
    return Sampling(
        sampling_keys(body.seed, draws),
        temperature,
        top_p,
        bias_ids,
        bias,
        top_k=max(body.top_k, 0),
        min_p=body.min_p,
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
    )


def sampling_keys(seed: int | None, draws: int) -> Int32[np.ndarray, "draws 2"]:
    """Return a random key for each draw.

    The key of draw `i` is the 8-byte BLAKE2b digest of the seed and `i`, both as 8 bytes with the lowest first, so it
    depends on nothing else. Without a seed keys come from the operating system.
    """
    if seed is None:
        words = secrets.token_bytes(8 * draws)
    else:
        start = hashlib.blake2b(seed.to_bytes(8, "little", signed=True), digest_size=8)
        digests = []
        for draw in range(draws):
            digest = start.copy()
            digest.update(draw.to_bytes(8, "little"))
            digests.append(digest.digest())
        words = b"".join(digests)
    return np.frombuffer(words, "<i4").reshape(draws, 2).astype(np.int32)


def stops_of(body: AnswerBody, vocab_size: int) -> Stops:
    """Return what ends an answer.

    Raises:
        RequestError: `invalid_stop_token_ids` or `token_id_exceeds_vocab`.
    """
    texts = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    return Stops(texts, _read_stop_ids(body.stop_token_ids, vocab_size), body.ignore_eos)


def _read_stop_ids(given: object, vocab_size: int) -> frozenset[int]:
    name = "stop_token_ids"
    if given is None:
        return frozenset()
    if not isinstance(given, ROW_TYPES) or len(given) > MAX_STOP_IDS:
        message = f"{name} must be a list of at most {MAX_STOP_IDS} token ids."
        raise RequestError(f"invalid_{name}", message, name)
    if len(given) == 0:
        return frozenset()
    rows = read_row(name, cast(Sequence[object], given))
    rows.check_below(vocab_size)
    return frozenset(rows.values.tolist())


def _read_bias(bias: object, vocab_size: int) -> tuple[np.ndarray, np.ndarray]:
    param, code = "logit_bias", "invalid_logit_bias"
    if bias is None:
        bias = {}
    if not isinstance(bias, Mapping):
        raise RequestError(code, f"logit_bias must be an object of numbers by token id, not {kind(bias)}.", param)
    if len(bias) > MAX_BIASES:
        raise RequestError(code, f"logit_bias has {len(bias)} tokens; at most {MAX_BIASES} are allowed.", param)
    by_id: dict[int, float] = {}
    for name, value in bias.items():
        token, added = _token_id(name), _as_number(value)
        if token in by_id:
            raise RequestError(code, "logit_bias names a token twice.", param)
        if token >= vocab_size:
            message = f"logit_bias names a token that is not below the vocabulary size {vocab_size}."
            raise RequestError("token_id_exceeds_vocab", message, param)
        if not -100 <= added <= 100:
            raise RequestError(code, f"The value of token {token} in logit_bias must be from -100 to 100.", param)
        by_id[token] = added
    return np.array(list(by_id), np.int32), np.array(list(by_id.values()), np.float32)


def _token_id(name: object) -> int:
    """Return the id that a name of a JSON object spells; Python may give it as a number."""
    if isinstance(name, (int, np.integer)) and not isinstance(name, bool) and name >= 0:
        return int(name)
    if not isinstance(name, str) or not name.isascii() or not name.isdecimal() or len(name) > _MOST_DIGITS:
        raise RequestError("invalid_logit_bias", "The names in logit_bias must be token ids, such as 42.", "logit_bias")
    return int(name)


def _as_number(value: object) -> float:
    """Return a number as a float; NaN if it is none."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        return math.nan
    try:
        return float(cast(float, value))
    except OverflowError:
        return math.inf
