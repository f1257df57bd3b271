"""The fields by which a request says how its next tokens are drawn and where an answer ends.

Names and ranges are OpenAI's; `top_k`, `min_p`, `stop_token_ids` and `ignore_eos` are vLLM's.
"""

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
from jaxtyping import Int32

from mis_core.errors import RequestError
from mis_core.requests import MAX_BIASES, Sampling
from mis_core.tasks.fields.openai import as_number, read_flag, read_number, read_whole
from mis_core.tasks.fields.token_rows import ROW_TYPES, read_row
from mis_core.tasks.fields.values import kind, readable
from mis_core.tokenization import Tokenizer

SAMPLING_FIELDS = (
    "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "seed", "logit_bias", "n",
    "stop", "stop_token_ids", "ignore_eos",
)  # fmt: skip
"""Every field that is read here."""

MAX_DRAWS = 128
MAX_STOPS = 16
MAX_STOP_CHARACTERS = 256
MAX_STOP_IDS = 256

_GREEDY_BELOW = 1e-5  # a temperature; logits that are divided by less overflow
_MOST_DIGITS = 18  # of a token id
_SEEDS = range(-(2**63), 2**63)


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


def read_sampling(fields: Mapping[str, object], draws: int, vocab_size: int) -> Sampling:
    """Read how tokens are drawn.

    Args:
        fields: `temperature` (0 to 2, default 1; below 0.00001 is 0), `top_p` (0 to 1, default 1; so little that one
            token has it is temperature 0), `top_k` (1 and more; 0 and -1: all tokens), `min_p` (0 to 1),
            `presence_penalty` and `frequency_penalty` (-2 to 2), `seed` (a signed 64-bit number) and `logit_bias`
            (token ids to numbers from -100 to 100); null is as good as missing.
        draws: How many answers are drawn; answer `i` has the same key whatever their number.
        vocab_size: Ids in `logit_bias` are below this.

    Raises:
        RequestError: `invalid_` and the name of the field, or `token_id_exceeds_vocab`.
    """
    temperature = read_number(fields, "temperature", most=2.0)
    top_p = read_number(fields, "top_p", most=1.0)
    seed = read_whole(fields, "seed", _SEEDS)
    bias_ids, bias = _read_bias(fields.get("logit_bias"), vocab_size)
    if temperature < _GREEDY_BELOW or top_p * vocab_size <= 1:  # the most probable token alone has as much
        temperature, top_p = 0.0, 1.0
    return Sampling(
        sampling_keys(seed, draws),
        temperature,
        top_p,
        bias_ids,
        bias,
        top_k=max(read_whole(fields, "top_k", range(-1, 2**31 - 1)) or 0, 0),
        min_p=read_number(fields, "min_p", most=1.0, default=0.0),
        presence_penalty=_read_penalty(fields, "presence_penalty"),
        frequency_penalty=_read_penalty(fields, "frequency_penalty"),
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


def read_draws(fields: Mapping[str, object], name: str = "n") -> int:
    """Read how many choices a prompt gets, 1 unless it says so.

    Raises:
        RequestError: `invalid_` and the name of the field.
    """
    draws = read_whole(fields, name, range(1, MAX_DRAWS + 1))
    return 1 if draws is None else draws


def read_stops(fields: Mapping[str, object], vocab_size: int) -> Stops:
    """Read what ends an answer: `stop`, a text or several, `stop_token_ids` and `ignore_eos`.

    Raises:
        RequestError: `invalid_` and the name of the field, or `token_id_exceeds_vocab`.
    """
    return Stops(_read_stop_texts(fields), _read_stop_ids(fields, vocab_size), read_flag(fields, "ignore_eos"))


def _read_stop_texts(fields: Mapping[str, object]) -> tuple[str, ...]:
    stop = fields.get("stop")
    if stop is None:
        return ()
    texts = [stop] if isinstance(stop, str) else stop
    if not isinstance(texts, (list, tuple)) or not all(isinstance(text, str) for text in texts):
        raise RequestError("invalid_stop", "stop must be a text or a list of texts.", "stop")
    if len(texts) > MAX_STOPS:
        raise RequestError("invalid_stop", f"stop has {len(texts)} texts; at most {MAX_STOPS} are allowed.", "stop")
    for text in texts:
        if not 0 < len(text) <= MAX_STOP_CHARACTERS:
            message = f"Every text in stop must have 1 to {MAX_STOP_CHARACTERS} characters."
            raise RequestError("invalid_stop", message, "stop")
        readable(text, "stop", "invalid_stop")
    return tuple(texts)


def _read_stop_ids(fields: Mapping[str, object], vocab_size: int) -> frozenset[int]:
    name = "stop_token_ids"
    given = fields.get(name)
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
        token, added = _token_id(name), as_number(value)
        if token in by_id:
            raise RequestError(code, "logit_bias names a token twice.", param)
        if token >= vocab_size:
            message = f"logit_bias names a token that is not below the vocabulary size {vocab_size}."
            raise RequestError("token_id_exceeds_vocab", message, param)
        if not -100 <= added <= 100:
            raise RequestError(code, f"The value of token {token} in logit_bias must be from -100 to 100.", param)
        by_id[token] = added
    return np.array(list(by_id), np.int32), np.array(list(by_id.values()), np.float32)


def _read_penalty(fields: Mapping[str, object], name: str) -> float:
    penalty = 0.0 if fields.get(name) is None else as_number(fields[name])
    if not -2 <= penalty <= 2:  # NaN is not
        raise RequestError(f"invalid_{name}", f"{name} must be a number from -2 to 2.", name)
    return penalty


def _token_id(name: object) -> int:
    """Return the id that a name of a JSON object spells; Python may give it as a number."""
    if isinstance(name, (int, np.integer)) and not isinstance(name, bool) and name >= 0:
        return int(name)
    if not isinstance(name, str) or not name.isascii() or not name.isdecimal() or len(name) > _MOST_DIGITS:
        raise RequestError("invalid_logit_bias", "The names in logit_bias must be token ids, such as 42.", "logit_bias")
    return int(name)
