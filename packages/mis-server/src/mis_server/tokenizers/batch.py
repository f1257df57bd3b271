"""Bodies that ask the same about many states: where in one the states are, and what all of them share.

A state becomes the body of a request of its own when it is asked about: its bytes as the client sent them, before what
all states share. So it is read as such a request is, by the same code in the same process, and has the same answer to
the last bit; nothing is written as JSON twice, and nothing large is decoded where it would hold up the event loop.
"""

from dataclasses import dataclass

import msgspec
import numpy as np

from mis_core.tasks.decide.system_one.body import SystemOneBatchBody, SystemOneBody
from mis_core.tasks.fields.body import read_body
from mis_core.tasks.fields.values import check_count
from mis_core.tokenization import Tokenizer
from mis_server.tokenizers.decoding import decode_object

_SHARED = [name for name in SystemOneBatchBody.__struct_fields__ if name in SystemOneBody.__struct_fields__]


@dataclass(frozen=True, slots=True)
class Batch:
    """What a body asks.

    Attributes:
        spans: Of each state, where in the body it begins and ends.
        shared: Members of a JSON object, with their comma before them: all that is asked about each state.
    """

    spans: list[tuple[int, int]]
    shared: bytes

    def own_body(self, state: bytes) -> bytes:
        """Return the body of a request about one state, which is JSON."""
        return b"".join((b'{"state":', state, self.shared, b"}"))


def read_batch(body: bytes, max_items: int, tokenizer: Tokenizer) -> Batch:
    """Read a body of `/v1/systemone/batch`; runs in tokenizer processes, though it leaves texts to later jobs.

    Args:
        body: The request's body.
        max_items: Most states.
        tokenizer: The model's.

    Raises:
        RequestError: it is no JSON, a field is of a wrong type, or there are too many states.
    """
    fields = read_body(SystemOneBatchBody, decode_object(body))
    check_count(len(fields.states), max_items, "states", "states")
    given = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    shared = msgspec.json.encode({name: given[name] for name in _SHARED if name in given})
    # Raw values are views of the body, so their addresses say where they are in it.
    begin = _address(body)
    states = msgspec.json.decode(given["states"], type=list[msgspec.Raw])
    spans = [(at := _address(state) - begin, at + memoryview(state).nbytes) for state in states]
    return Batch(spans, b"," + shared[1:-1])


def _address(data: bytes | msgspec.Raw) -> int:
    return np.frombuffer(data, np.uint8).__array_interface__["data"][0]
