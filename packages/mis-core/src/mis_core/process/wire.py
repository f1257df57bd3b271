"""The protocol between front process and engine process: typed msgpack messages in frames.

A frame is a four-byte little-endian length and one msgpack map whose `type` names the message. Numbers
travel as little-endian bytes of a dtype fixed here, never as pickled objects: decoding can build the
classes below and nothing else. Both ends check what they read, because a bug or a version skew must end
in an error, not in a wrong score.

    front to engine     Configure, then Score, Generate, Cancel and Operate, then Shutdown
    engine to front     Ready or Failed, then one of Scored, Rejected, Errored for each Score,
                        Generated for the tokens of a step, or Rejected or Errored at a Generate's end,
                        and Operated or Rejected for each Operate

This module does no I/O: `engine_process`, in the front, and `request_table`, in the engine process, read and
write frames.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Literal, Self, TypeVar

import msgspec
import numpy as np
from jaxtyping import Float32, Int32

from mis_core.checkpoints import NO_SIGNS, ModelPart, Signs
from mis_core.config import Activation
from mis_core.requests import (
    MAX_BIASES,
    MAX_TOP_TOKENS,
    EngineOutput,
    FinishReason,
    GenerateRequest,
    NewToken,
    Sampling,
    ScoreRequest,
)

HEADER_BYTES = 4
MAX_FRAME_BYTES = 256 * 1024 * 1024

Operation = Literal["statistics", "flush_cache", "start_profile", "stop_profile"]
"""What `Operate` can do; `start_profile` needs a folder as its argument."""


class MalformedFrame(ValueError):
    """A frame is too long or does not hold a message of the protocol. It was not acted upon."""


class _Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag=str.lower):
    """Base of all messages; the lower-case class name travels as `type`."""


class Configure(_Message, frozen=True):
    """Load this model. The first message, sent once.

    Attributes:
        options: Fields of `EngineConfig`.
        log_level: Least important lines that the engine process logs, as the front does.
    """

    options: dict[str, Any]
    log_level: str = "WARNING"


class Score(_Message, frozen=True):
    """Compute what one request reads.

    Attributes:
        id: Chosen by the front, never reused.
        request: The request.
    """

    id: int
    request: ScoreRequest

    def __post_init__(self) -> None:
        """Refuse arrays that do not fit each other; a `ValueError` here is a `MalformedFrame` to whoever decodes."""
        request = self.request
        items, offsets, labels = request.num_items, request.item_starts, request.label_ids
        if len(offsets) != items + 1:
            raise ValueError(f"{items} items, but {len(offsets)} offsets.")
        lens = request.read_lens
        if lens is not None and (len(lens) != items or ((lens < 1) | (lens > np.diff(offsets))).any()):
            raise ValueError(f"Rows to read that the {items} items do not have.")
        if request.read_at is not None:
            _check_rows(request)
        if not 0 <= request.query_reads <= len(request.query) or not 0 <= request.top_tokens <= MAX_TOP_TOKENS:
            raise ValueError(f"{request.query_reads} rows of the query, {request.top_tokens} most probable tokens.")
        sampling = request.sampling
        if sampling is not None:
            _check_sampling(sampling, items)
        reads_something = labels.shape[1] or request.top_tokens or sampling is not None
        if len(labels) not in (1, request.num_reads) or not reads_something:
            raise ValueError(f"{request.num_reads} rows are read, but labels are of the shape {labels.shape}.")


def _check_rows(request: ScoreRequest) -> None:
    """Refuse rows that are not within their items or do not rise, and draws, which follow an item's last row."""
    at, counts = request.read_at, np.diff(request.read_starts)
    assert at is not None, "as whoever calls says"
    if request.sampling is not None or len(at) != counts.sum(dtype=np.int64):
        raise ValueError(f"{len(at)} rows to read, of {len(counts)} items, or rows of draws.")
    starts, ends = (np.repeat(each, counts) for each in (request.item_starts[:-1], np.diff(request.item_starts)))
    if (at < 0).any() or (at >= ends).any() or (np.diff(starts + at) <= 0).any():
        raise ValueError("Rows to read that are not within their items, or do not rise.")


class Generate(_Message, frozen=True):
    """Generate one sequence.

    Attributes:
        id: Chosen by the front, never reused, not even for a `Score`.
        request: The prompt, and how it goes on.
    """

    id: int
    request: GenerateRequest

    def __post_init__(self) -> None:
        """Refuse what cannot be generated, as `Score` does."""
        request = self.request
        if not len(request.prompt) or request.max_new_tokens < 1 or not 0 <= request.top_tokens <= MAX_TOP_TOKENS:
            raise ValueError(f"{request.max_new_tokens} tokens behind a prompt of {len(request.prompt)}.")
        _check_sampling(request.sampling, 1)


class Cancel(_Message, frozen=True):
    """The request is no longer wanted; it need not be computed and gets no answer, or no more tokens."""

    id: int


class Operate(_Message, frozen=True):
    """Do something to the engine as a whole.

    Attributes:
        id: Chosen by the front, never reused, not even for another kind of message.
        action: What to do.
        argument: What the action needs, such as a folder.
    """

    id: int
    action: Operation
    argument: str | None = None


class Shutdown(_Message, frozen=True):
    """Answer what was sent before, free the device, and exit."""


class Ready(_Message, frozen=True):
    """The model is loaded and compiled.

    Attributes:
        vocab_size: Token ids below it are valid.
        context_length: Longest query + item, in tokens.
        summary: What was loaded, for people: devices, budget, cache and so on.
        head_labels: As in `Limits`.
        head_activation: As in `Limits`.
        architecture: As in `Limits`.
        only_task: As in `Limits`.
        signs: As in `Limits`.
        created: When the checkpoint's settings were written, in seconds since 1970.
        parts: What the model is made of.
    """

    vocab_size: int
    context_length: int
    summary: dict[str, str | int | float] = {}
    head_labels: tuple[str, ...] = ()
    head_activation: Activation = "softmax"
    architecture: str = ""
    only_task: Literal["decide", "token_classify"] | None = None
    signs: Signs = NO_SIGNS
    created: int = 0
    parts: tuple[ModelPart, ...] = ()


class Failed(_Message, frozen=True):
    """The engine could not start and its process ends.

    Attributes:
        message: One line for the user.
        fault: The engine itself failed (out of memory, a bug); otherwise, the checkpoint or an option cannot be served.
    """

    message: str
    fault: bool = False


class Scored(_Message, frozen=True):
    """What was read of one request."""

    id: int
    output: EngineOutput

    def __post_init__(self) -> None:
        """Refuse arrays that do not fit each other, as `Score` does."""
        output, rows = self.output, len(self.output.logits)
        normalisers, top, drawn = output.log_sum_exp, output.top_ids, output.next_ids
        if normalisers is not None and len(normalisers) != rows:
            raise ValueError(f"{rows} rows, but {len(normalisers)} normalisers.")
        if _shape(top) != _shape(output.top_logits) or (top is not None and len(top) != rows):
            raise ValueError(f"{rows} rows, but most probable tokens of the shape {_shape(top)}.")
        if _shape(drawn) != _shape(output.next_logits):
            raise ValueError(f"{_shape(drawn)} tokens are drawn, but {_shape(output.next_logits)} have values.")


_NO_IDS, _NO_LOGPROBS = np.zeros(0, np.int32), np.zeros(0, np.float32)


class Generated(_Message, frozen=True):
    """What a step adds to sequences, one token to each, in columns: a message for each would cost more than its token.

    Attributes:
        ids: Of the sequences.
        token_ids: As in `NewToken`, like all that follow; the last token of a sequence says why it ends.
        logprobs: One of each.
        top_counts: How many of the most probable tokens each has.
        top_ids: They, one sequence's after the other's, `[sum of top_counts]`.
        top_logprobs: Their log-probabilities.
        finish_reasons: One of each.
        cached_tokens: One of each.
    """

    ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    top_counts: tuple[int, ...]
    top_ids: Int32[np.ndarray, " top_tokens"]
    top_logprobs: Float32[np.ndarray, " top_tokens"]
    finish_reasons: tuple[FinishReason | None, ...]
    cached_tokens: tuple[int, ...]

    @classmethod
    def of(cls, numbered: Sequence[tuple[int, NewToken]]) -> Self:
        """Return the message of tokens, each with the number of its sequence; at least one."""
        tokens = [token for _, token in numbered]
        return cls(
            ids=tuple(number for number, _ in numbered),
            token_ids=tuple(token.token_id for token in tokens),
            logprobs=tuple(token.logprob for token in tokens),
            top_counts=tuple(len(token.top_ids) for token in tokens),
            top_ids=np.concatenate([token.top_ids for token in tokens]),
            top_logprobs=np.concatenate([token.top_logprobs for token in tokens]),
            finish_reasons=tuple(token.finish_reason for token in tokens),
            cached_tokens=tuple(token.cached_tokens for token in tokens),
        )

    def tokens(self) -> Iterator[tuple[int, NewToken]]:
        """Yield each token with the number of its sequence."""
        begin = 0
        columns = self.ids, self.token_ids, self.logprobs, self.top_counts, self.finish_reasons, self.cached_tokens
        for number, token_id, logprob, count, reason, cached in zip(*columns, strict=True):
            ids, logprobs = _NO_IDS, _NO_LOGPROBS
            if count:  # copies: whoever keeps a token must not keep those of all
                ids, logprobs = (each[begin : begin + count].copy() for each in (self.top_ids, self.top_logprobs))
                begin += count
            yield number, NewToken(token_id, logprob, ids, logprobs, reason, cached)

    def __post_init__(self) -> None:
        """Refuse columns that do not fit each other, as `Score` does."""
        columns = self.token_ids, self.logprobs, self.top_counts, self.finish_reasons, self.cached_tokens
        if any(len(column) != len(self.ids) for column in columns):
            raise ValueError(f"{len(self.ids)} sequences, but columns of {[len(column) for column in columns]}.")
        told, ids, values = sum(self.top_counts), len(self.top_ids), len(self.top_logprobs)
        if min(self.top_counts, default=0) < 0 or not told == ids == values:
            raise ValueError(f"{told} most probable tokens should be told, not {ids} of them with {values} values.")


class Rejected(_Message, frozen=True):
    """The request breaks the contract in a way only the engine could see; the fields are those of `RequestError`."""

    id: int
    code: str
    message: str
    param: str | None


class Errored(_Message, frozen=True):
    """The engine failed on this request; its log says why. Other requests are not affected.

    Attributes:
        is_lost: The device failed in a step that computed this request, perhaps among others: it may not be at fault.
    """

    id: int
    is_lost: bool = False


class Operated(_Message, frozen=True):
    """The result of an `Operate`.

    Attributes:
        values: Numbers by name; of `statistics` counts, of `flush_cache` how many pages were freed.
    """

    id: int
    values: dict[str, float]


ToEngine = Configure | Score | Generate | Cancel | Operate | Shutdown
ToFront = Ready | Failed | Scored | Generated | Rejected | Errored | Operated
_AnyMessage = TypeVar("_AnyMessage")

_DTYPES = ("<i4", "<f4")


def _shape(array: np.ndarray | None) -> tuple[int, ...] | None:
    return None if array is None else array.shape


def _check_sampling(sampling: Sampling, items: int) -> None:
    if sampling.keys.shape != (items, 2) or not len(sampling.bias_ids) == len(sampling.bias) <= MAX_BIASES:
        raise ValueError(f"{items} items, but keys of the shape {sampling.keys.shape}; or biases that do not fit.")


def _pack(array: Any) -> tuple[str, tuple[int, ...], bytes]:
    """Return an array as its type, its shape and its bytes."""
    if not isinstance(array, np.ndarray) or array.dtype.str not in _DTYPES:
        raise TypeError(f"{type(array).__name__} does not travel.")
    return array.dtype.str, array.shape, array.tobytes()


def _unpack(annotation: type, packed: Any) -> np.ndarray:
    """Return the array; msgspec checks it against its annotation, type and number of axes."""
    dtype, shape, data = msgspec.convert(packed, tuple[Literal["<i4", "<f4"], tuple[int, ...], bytes])
    return np.frombuffer(data, dtype).reshape(shape)


_encoder = msgspec.msgpack.Encoder(enc_hook=_pack)


def encode_frame(message: ToEngine | ToFront) -> bytes:
    """Return the frame of a message.

    Raises:
        MalformedFrame: it would exceed `MAX_FRAME_BYTES`.
    """
    frame = bytearray(HEADER_BYTES)
    _encoder.encode_into(message, frame, HEADER_BYTES)
    size = len(frame) - HEADER_BYTES
    if size > MAX_FRAME_BYTES:
        raise MalformedFrame(f"A message of {size} bytes exceeds the limit of {MAX_FRAME_BYTES}.")
    frame[:HEADER_BYTES] = size.to_bytes(HEADER_BYTES, "little")
    return bytes(frame)


def payload_size(header: bytes) -> int:
    """Return the length of the payload that follows a header, in bytes.

    Raises:
        MalformedFrame: it exceeds `MAX_FRAME_BYTES`; nothing must be read or allocated for it.
    """
    size = int.from_bytes(header, "little")
    if size > MAX_FRAME_BYTES:
        raise MalformedFrame(f"A frame announces {size} bytes; the limit is {MAX_FRAME_BYTES}.")
    return size


def _decode(decoder: msgspec.msgpack.Decoder[_AnyMessage], payload: bytes) -> _AnyMessage:
    try:
        return decoder.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedFrame(f"A frame does not hold a message of the protocol: {error}") from None


decode_for_engine = partial(_decode, msgspec.msgpack.Decoder(ToEngine, dec_hook=_unpack))
"""Read a message that the front sent. Raises `MalformedFrame` if it is not one."""

decode_for_front = partial(_decode, msgspec.msgpack.Decoder(ToFront, dec_hook=_unpack))
"""Read a message that the engine sent. Raises `MalformedFrame` if it is not one."""
