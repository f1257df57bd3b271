"""From the bytes of a body to its fields, and to a request."""

import marshal
from collections.abc import Callable, Mapping
from typing import Any, cast

import msgspec
import numpy as np

from mis_core.errors import RequestError
from mis_core.tasks.fields.token_rows import TokenRows
from mis_core.tasks.limits import Limits
from mis_core.tasks.path.task import Fields, ParsedType, Task
from mis_core.tasks.score.body import LaidOutScoreBody
from mis_core.tokenization import Meter, Tokenizer

try:
    from simdjson import Array, Object, Parser
except (ImportError, RuntimeError):  # not built for this Python or processor: the same results, at a higher cost
    Parser = None

_MOST_FIELDS = len(LaidOutScoreBody.__struct_fields__)

_FORMS = {"query": (False,), "items": (True,), "label_token_ids": (False, True)}  # lists of ids; lists of lists?


def decode_object(body: bytes) -> Mapping[str, Any]:
    """Read a JSON object.

    Raises:
        RequestError: `invalid_json`.
    """
    try:
        fields = msgspec.json.decode(body)
    except UnicodeDecodeError:
        raise RequestError("invalid_json", "The body is not UTF-8.") from None
    except RecursionError:
        raise RequestError("invalid_json", "The body is nested too deeply.") from None
    except msgspec.DecodeError as error:
        raise RequestError("invalid_json", f"The body is not valid JSON: {error}.") from None
    if not isinstance(fields, dict):
        raise RequestError("invalid_json", "The body must be a JSON object.")
    return fields


def parse_text(
    task: Task[ParsedType, Any],
    limits: Limits,
    models: tuple[str, ...] | None,
    decode: Callable[[bytes], Fields],
    source: bytes,
    most: int | None,
    tokenizer: Tokenizer,
) -> ParsedType:
    """Validate and tokenise a request of the given task; runs in tokenizer processes.

    Args:
        task: The task.
        limits: What the request may ask for.
        models: The model names that it may give; None: any.
        decode: Reads the fields.
        source: What it reads them from.
        most: What it may cost here, as `Meter` counts it; None: what its limits allow.
        tokenizer: Tokenises its texts.

    Raises:
        RequestError: the request breaks the contract, or is more work than its limits allow.
        TooMuchWork: it costs more than `most`; nothing is said of the request.
    """
    fields = decode(source)
    if most is None:
        return task.read(fields, tokenizer, limits, models)
    return task.parse(fields, tokenizer.metered(Meter(most)), limits, models)


def decode_body(body: bytes) -> Mapping[str, Any]:
    """Read a JSON object; the fields of `_FORMS` come as `TokenRows`, without a Python object for each id.

    Whatever is not plainly lists of ids is left to `decode_object`, as are all errors: one place decides what is JSON.

    Raises:
        RequestError: `invalid_json`.
    """
    return _fields_with_rows(body) or decode_object(body)


def packed(fields: Fields, body: bytes = b"") -> bytes:
    """Return fields as tokenizer processes get them, to be read by `marshal.loads`.

    Args:
        fields: Fields, with a text among them.
        body: What `decode_body` has read them from.

    Raises:
        RequestError: `invalid_json`.
    """
    if any(isinstance(value, TokenRows) for value in fields.values()):  # so the text is where no request has one
        fields = decode_object(body)
    try:
        return marshal.dumps(dict(fields))  # goes as deep as JSON does, and pickle half as deep
    except ValueError:
        raise RequestError("invalid_json", "The body is nested too deeply.") from None


def _fields_with_rows(body: bytes) -> Mapping[str, Any] | None:
    if Parser is None or not body.startswith(b"{"):
        return None
    fields: dict[str, Any] = {}
    lists = 0
    try:
        document = cast(Object, Parser().parse(body))
        if len(document) > _MOST_FIELDS:  # each look-up reads the names before it
            return None
        for name in document.keys():  # noqa: SIM118 - as `items` gives lists
            if name in fields or "\0" in name:  # simdjson's names end at a zero byte
                return None
            value = document[name]
            if isinstance(value, Array) and name in _FORMS:
                rows = fields[name] = _rows(name, value)
                lists += 1 + (len(rows.lens) if rows.is_nested else 0)
            elif isinstance(value, (str, int, float)) and name not in _FORMS:
                fields[name] = value
            else:
                return None
    except (ValueError, TypeError, LookupError, RuntimeError):
        return None
    return fields if lists == body.count(b"[") else None  # no deeper list


def _rows(name: str, array: "Array") -> TokenRows:
    """Read a list of ids, or of lists of ids. Deeper lists look the same here, so the caller counts lists.

    Raises:
        TypeError: something else is in it.
        ValueError: an id that is negative or beyond 64 bits, or a list that is empty or of the wrong form.
    """
    is_nested = isinstance(array[0], Array)
    # What is beyond 63 bits is negative then, and no token id to `TokenRows.check_below`.
    values = np.frombuffer(array.as_buffer(of_type="u"), np.int64)
    lens = list(map(len, cast(Any, array))) if is_nested else [len(values)]
    is_label_missing = name == "label_token_ids" and 0 in lens
    is_short = sum(lens) != len(values)  # simdjson counts no further than 16,777,215
    if is_nested not in _FORMS[name] or is_label_missing or is_short:
        raise ValueError(name)
    return TokenRows(name, values, np.array(lens), is_nested)
