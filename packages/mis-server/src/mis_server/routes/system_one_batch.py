"""`POST /v1/systemone/batch`: the same questions about many states, each of which is a request of its own.

The body is read once, for what is wrong with all of it; then each state goes the path of every request, with a permit,
and its line has the bits that it has alone. Some states are begun before the line of the first of them is ready, and no
further one before that line is on its way: a client that does not read holds up the work, and nothing piles up.
"""

import contextlib
from collections.abc import AsyncIterator
from functools import partial

import msgspec
from fastapi import APIRouter, Request
from starlette.requests import ClientDisconnect
from starlette.responses import Response, StreamingResponse

from mis_core.errors import RequestError
from mis_core.tasks.decide.system_one.body import SystemOneBatchBody
from mis_core.tasks.decide.system_one.task import SYSTEM_ONE
from mis_server.edge.admission import Permit, Siblings
from mis_server.errors import error_line, forget_frames
from mis_server.model import AT_A_TIME, Model, in_order, in_thread_if_large
from mis_server.routes.system_one import ERRORS, num_values, reply_of
from mis_server.schemas.bodies import described
from mis_server.schemas.system_one import BATCH_EXAMPLE, BATCH_PATH, LINES, LINES_TYPE, SystemOneReply
from mis_server.service import UNBUFFERED, HttpService, service_of
from mis_server.streams import LineStream
from mis_server.tokenizers.batch import Batch, read_batch
from mis_server.tokenizers.pool import SMALL

_ANY_STATE = b'"."'
_REPEATED_BYTES = 2 * 1024 * 1024  # of the questions in the bodies of states that are under way together

router = APIRouter()


@router.post(
    BATCH_PATH,
    response_class=Response,
    responses=LINES | ERRORS,
    openapi_extra=described(SystemOneBatchBody, BATCH_EXAMPLE),
)
async def system_one_batch(request: Request) -> Response:
    """Answer the same questions about each of many states: a line for each, as soon as all before it are there.

    A line is the reply to a request about its state alone, to the last bit, or `{"error": {"code", "message"}}`. What
    is wrong with the body as a whole is an error before the first line. The header `x-request-timeout` gives a deadline
    in seconds; each state that is left then has an error.
    """
    service = service_of(request)
    service.model.check(SYSTEM_ONE)
    stream = await LineStream.start(partial(_answer_each, service, request))
    return StreamingResponse(_lines(stream), headers=UNBUFFERED, media_type=LINES_TYPE)


async def _lines(stream: LineStream) -> AsyncIterator[bytes]:
    async with stream:
        try:
            async for line in stream:
                yield line
        except ClientDisconnect as error:
            forget_frames(error)


async def _answer_each(service: HttpService, request: Request, stream: LineStream) -> None:
    """Make the lines of a request until its deadline, and then the error of each state that is left."""
    left = 0  # states without a line, once the reply has begun
    try:
        async with service.arrived(request) as body:
            with service.admission.permit():  # until its states have their own
                batch = await _read(service.model, body)
            left = len(batch.spans)
            stream.open()
            bodies = (batch.own_body(body[begin:end]) for begin, end in batch.spans)
            answer = partial(_answer, service, request, Siblings(service.admission))
            most = max(1, min(AT_A_TIME, _REPEATED_BYTES // len(batch.shared)))
            async with contextlib.aclosing(in_order(answer, bodies, most)) as lines:
                async for line in lines:
                    await stream.room()
                    stream.put(line)
                    left -= 1
    except RequestError as error:
        if not left:
            raise
        stream.put(error_line(request, error) * left)


async def _read(model: Model, body: bytes) -> Batch:
    """Find the states of a body, and refuse what would be wrong with each of them.

    The questions are parsed with a state of one character, so their errors are those of a request about one state.
    """
    lane = model.tokenizers.small if len(body) <= SMALL else model.tokenizers.large
    batch = await lane(partial(read_batch, body, model.limits.max_items), len(body))
    try:
        await model.parse(SYSTEM_ONE, batch.own_body(_ANY_STATE))
    except RequestError as error:
        if error.param != "state":  # which the client has not sent: each of its own has an error of its own
            raise
    return batch


async def _answer(service: HttpService, request: Request, siblings: Siblings, body: bytes) -> bytes:
    """Return the line of a state, whatever becomes of it."""

    async def answer(permit: Permit) -> bytes:
        service.model.check(SYSTEM_ONE)
        answered = await service.answer(SYSTEM_ONE, body, permit)
        return await in_thread_if_large(num_values(answered), _encoded, reply_of(service, answered))

    try:
        return await siblings.admit(answer)
    except Exception as error:
        return error_line(request, error)


def _encoded(reply: SystemOneReply) -> bytes:
    return msgspec.json.encode(reply) + b"\n"
