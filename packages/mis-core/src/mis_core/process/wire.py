"""The protocol between front process and engine process: typed msgpack messages in frames.

A frame is a four-byte little-endian length and one msgpack map whose `type` names the message. Numbers
travel as little-endian bytes of a dtype fixed here, never as pickled objects: decoding can build the
classes below and nothing else. Both ends check what they read, because a bug or a version skew must end
in an error, not in a wrong score.

    front to engine     Configure, then Score, Cancel and Operate, then Shutdown
    engine to front     Ready or Failed, then one of Scored, Rejected, Errored for each Score,
                        and Operated or Rejected for each Operate

This module does no I/O; `client` and `main` read and write the frames.
"""

from typing import Any, Literal, TypeVar

import msgspec
import numpy as np

from mis_core.scoring.request import LabelLogits, Layout, ScoreRequest

HEADER_BYTES = 4
MAX_FRAME_BYTES = 256 * 1024 * 1024

Operation = Literal["statistics", "flush_cache", "start_profile", "stop_profile"]
"""What `Operate` can do; `start_profile` needs a folder as its argument."""

_INT32 = np.dtype("<i4")
_FLOAT32 = np.dtype("<f4")


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
    """Compute the label logits of one request; the fields are those of `ScoreRequest`.

    Attributes:
        id: Chosen by the front, never reused.
        label_columns: Width of `label_ids`, whose rows are stored one after the other.
    """

    id: int
    query: bytes
    item_tokens: bytes
    item_starts: bytes
    context_lens: bytes
    label_ids: bytes
    label_columns: int
    apply_softmax: bool
    temperature: float
    return_token_logprobs: bool
    cache_salt: str | None
    algorithm: str | None = None
    mask: str | None = None
    chunk_size: int | None = None

    @classmethod
    def of(cls, id: int, request: ScoreRequest) -> "Score":
        """Pack a request."""
        return cls(
            id=id,
            query=_pack(request.query, _INT32),
            item_tokens=_pack(request.item_tokens, _INT32),
            item_starts=_pack(request.item_starts, _INT32),
            context_lens=_pack(request.context_lens, _INT32),
            label_ids=_pack(request.label_ids, _INT32),
            label_columns=request.label_ids.shape[1],
            apply_softmax=request.apply_softmax,
            temperature=request.temperature,
            return_token_logprobs=request.return_token_logprobs,
            cache_salt=request.cache_salt,
            algorithm=request.layout.algorithm,
            mask=request.layout.mask,
            chunk_size=request.layout.chunk_size,
        )

    def request(self) -> ScoreRequest:
        """Unpack the request.

        Raises:
            MalformedFrame: the arrays do not fit each other.
        """
        request = ScoreRequest(
            query=_unpack(self.query, _INT32),
            item_tokens=_unpack(self.item_tokens, _INT32),
            item_starts=_unpack(self.item_starts, _INT32),
            context_lens=_unpack(self.context_lens, _INT32),
            label_ids=_unpack_rows(self.label_ids, _INT32, self.label_columns),
            apply_softmax=self.apply_softmax,
            temperature=self.temperature,
            return_token_logprobs=self.return_token_logprobs,
            cache_salt=self.cache_salt,
            layout=Layout(self.algorithm, self.mask, self.chunk_size),
        )
        if len(request.item_starts) != request.num_items + 1 or len(request.label_ids) not in (1, request.num_items):
            raise MalformedFrame(
                f"A score message has {request.num_items} items but {len(request.item_starts)} offsets "
                f"and {len(request.label_ids)} rows of labels."
            )
        return request


class Cancel(_Message, frozen=True):
    """The request is no longer wanted; it need not be computed and gets no answer."""

    id: int


class Operate(_Message, frozen=True):
    """Do something to the engine as a whole.

    Attributes:
        id: Chosen by the front, never reused, not even for a `Score`.
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
    """

    vocab_size: int
    context_length: int
    summary: dict[str, str | int | float] = {}


class Failed(_Message, frozen=True):
    """The engine could not start and its process ends.

    Attributes:
        message: One line for the user.
        fault: The engine itself failed (out of memory, a bug); otherwise, the checkpoint or an option cannot be served.
    """

    message: str
    fault: bool = False


class Scored(_Message, frozen=True):
    """The label logits of one request; the fields are those of `LabelLogits`.

    Attributes:
        label_columns: Width of `logits`, whose rows are stored one after the other.
    """

    id: int
    logits: bytes
    label_columns: int
    log_sum_exp: bytes | None
    cached_tokens: int
    timings_ms: dict[str, float]
    algorithm: str = ""
    reason: str = ""
    steps: int = 0

    @classmethod
    def of(cls, id: int, logits: LabelLogits) -> "Scored":
        """Pack an answer."""
        return cls(
            id=id,
            logits=_pack(logits.logits, _FLOAT32),
            label_columns=logits.logits.shape[1],
            log_sum_exp=None if logits.log_sum_exp is None else _pack(logits.log_sum_exp, _FLOAT32),
            cached_tokens=logits.cached_tokens,
            timings_ms=logits.timings_ms,
            algorithm=logits.algorithm,
            reason=logits.reason,
            steps=logits.steps,
        )

    def label_logits(self) -> LabelLogits:
        """Unpack the answer.

        Raises:
            MalformedFrame: the arrays do not fit each other.
        """
        logits = _unpack_rows(self.logits, _FLOAT32, self.label_columns)
        log_sum_exp = None if self.log_sum_exp is None else _unpack(self.log_sum_exp, _FLOAT32)
        if log_sum_exp is not None and len(log_sum_exp) != len(logits):
            raise MalformedFrame(f"An answer has {len(logits)} rows but {len(log_sum_exp)} normalisers.")
        return LabelLogits(
            logits, log_sum_exp, self.cached_tokens, self.timings_ms, self.algorithm, self.reason, self.steps
        )


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


ToEngine = Configure | Score | Cancel | Operate | Shutdown
ToFront = Ready | Failed | Scored | Rejected | Errored | Operated
_AnyMessage = TypeVar("_AnyMessage")

_encoder = msgspec.msgpack.Encoder()
_engine_decoder = msgspec.msgpack.Decoder(ToEngine)
_front_decoder = msgspec.msgpack.Decoder(ToFront)


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


def decode_for_engine(payload: bytes) -> ToEngine:
    """Read a message that the front sent.

    Raises:
        MalformedFrame: it is not one.
    """
    return _decode(_engine_decoder, payload)


def decode_for_front(payload: bytes) -> ToFront:
    """Read a message that the engine sent.

    Raises:
        MalformedFrame: it is not one.
    """
    return _decode(_front_decoder, payload)


def _decode(decoder: msgspec.msgpack.Decoder[_AnyMessage], payload: bytes) -> _AnyMessage:
    try:
        return decoder.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedFrame(f"A frame does not hold a message of the protocol: {error}") from None


def _pack(array: np.ndarray, dtype: np.dtype) -> bytes:
    return np.ascontiguousarray(array, dtype).tobytes()


def _unpack(data: bytes, dtype: np.dtype) -> np.ndarray:
    if len(data) % dtype.itemsize:
        raise MalformedFrame(f"{len(data)} bytes are not a whole number of {dtype.name} values.")
    return np.frombuffer(data, dtype)


def _unpack_rows(data: bytes, dtype: np.dtype, columns: int) -> np.ndarray:
    values = _unpack(data, dtype)
    if columns < 1 or len(values) % columns:
        raise MalformedFrame(f"{len(values)} values are not rows of {columns}.")
    return values.reshape(-1, columns)
