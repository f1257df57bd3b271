"""From errors to replies. Only this module knows HTTP statuses.

Every error reply has the form `{"error": {"message", "type", "param", "code"}}`, which OpenAI's clients read; those of
System One's routes have `detail`, as `schemas.system_one` says.
"""

import logging
import traceback
from http import HTTPStatus

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from mis_core.errors import EngineUnavailable, RequestError
from mis_core.process.quarantine import RequestRefused
from mis_server.schemas import system_one
from mis_server.schemas.errors import ErrorDetail, ErrorReply
from mis_server.tokenizers.pool import TokenizersUnavailable

logger = logging.getLogger(__name__)

_INVALID = "invalid_request_error"
_VALUE = "invalid_value_error"
_MISSING = "missing_parameter_error"
_SERVER = "server_error"

ERRORS: dict[str, tuple[int, str]] = {
    "missing_query": (400, _MISSING),
    "empty_query": (400, _VALUE),
    "invalid_query_type": (400, _INVALID),
    "missing_items": (400, _MISSING),
    "empty_items": (400, _VALUE),
    "invalid_items_type": (400, _INVALID),
    "mixed_input_types": (400, _INVALID),
    "missing_label_token_ids": (400, _MISSING),
    "empty_label_token_ids": (400, _VALUE),
    "invalid_label_token_ids_type": (400, _INVALID),
    "invalid_token_id_type": (400, _INVALID),
    "negative_token_id": (400, _VALUE),
    "token_id_exceeds_vocab": (422, _VALUE),
    "invalid_labels_type": (400, _INVALID),
    "empty_labels": (400, _INVALID),
    "conflicting_labels": (400, _INVALID),
    "empty_label": (422, _VALUE),
    "label_not_single_token": (422, _VALUE),
    "unknown_label": (422, _VALUE),
    "label_count_mismatch": (400, _VALUE),
    "too_many_items": (400, _VALUE),
    "too_many_labels": (400, _VALUE),
    "too_many_tokens": (400, _VALUE),
    "too_many_sequences": (400, _VALUE),
    "tokenizer_failed": (400, _INVALID),
    "context_length_exceeded": (400, _INVALID),
    "delimiter_in_input": (400, _VALUE),
    "invalid_apply_softmax_type": (400, _INVALID),
    "invalid_item_first_type": (400, _INVALID),
    "invalid_return_token_logprobs_type": (400, _INVALID),
    "invalid_model_type": (400, _INVALID),
    "invalid_cache_salt_type": (400, _INVALID),
    "invalid_add_special_tokens_type": (400, _INVALID),
    "invalid_return_layout_type": (400, _INVALID),
    "invalid_on_error": (400, _VALUE),
    "invalid_calibration": (400, _VALUE),
    "invalid_temperature": (400, _VALUE),
    "invalid_scoring_algorithm": (400, _VALUE),
    "invalid_mask_impl": (400, _VALUE),
    "invalid_multi_item_scoring_chunk_size": (400, _VALUE),
    "missing_input": (400, _MISSING),
    "empty_input": (400, _VALUE),
    "invalid_input": (400, _INVALID),
    "invalid_use_activation": (400, _INVALID),
    "invalid_activation": (400, _INVALID),
    "invalid_softmax": (400, _INVALID),
    "invalid_priority": (400, _INVALID),
    "invalid_request_id": (400, _INVALID),
    "missing_state": (400, _MISSING),
    "invalid_state": (400, _INVALID),
    "missing_states": (400, _MISSING),
    "empty_states": (400, _VALUE),
    "invalid_states": (400, _INVALID),
    "invalid_x_on_error": (400, _VALUE),
    "invalid_x_choice_order": (400, _VALUE),
    "invalid_x_calibration": (400, _VALUE),
    "invalid_x_cache_salt_type": (400, _INVALID),
    "invalid_x_abstain_below": (400, _VALUE),
    "missing_questions": (400, _MISSING),
    "empty_questions": (400, _VALUE),
    "invalid_questions": (400, _INVALID),
    "invalid_choice_order": (400, _VALUE),
    "missing_documents": (400, _MISSING),
    "empty_documents": (400, _VALUE),
    "invalid_documents": (400, _INVALID),
    "invalid_top_n": (400, _VALUE),
    "invalid_return_documents": (400, _INVALID),
    "invalid_max_tokens_per_doc": (400, _VALUE),
    "invalid_instruction_type": (400, _INVALID),
    "too_few_label_tokens": (422, _VALUE),
    "missing_messages": (400, _MISSING),
    "empty_messages": (400, _VALUE),
    "invalid_messages": (400, _INVALID),
    "invalid_max_tokens": (400, _VALUE),
    "invalid_max_completion_tokens": (400, _VALUE),
    "invalid_n": (400, _VALUE),
    "invalid_top_p": (400, _VALUE),
    "invalid_top_k": (400, _VALUE),
    "invalid_min_p": (400, _VALUE),
    "invalid_stop_token_ids": (400, _INVALID),
    "invalid_ignore_eos": (400, _INVALID),
    "invalid_seed": (400, _VALUE),
    "invalid_logit_bias": (400, _VALUE),
    "invalid_stop": (400, _VALUE),
    "invalid_logprobs": (400, _VALUE),
    "invalid_top_logprobs": (400, _VALUE),
    "invalid_stream": (400, _INVALID),
    "invalid_stream_options": (400, _INVALID),
    "invalid_chat_template_kwargs": (400, _VALUE),
    "invalid_add_generation_prompt": (400, _INVALID),
    "invalid_continue_final_message": (400, _INVALID),
    "invalid_frequency_penalty": (400, _INVALID),
    "invalid_presence_penalty": (400, _INVALID),
    "invalid_metadata": (400, _INVALID),
    "invalid_max_chunks_per_doc": (400, _INVALID),
    "invalid_truncation": (400, _INVALID),
    "invalid_parallel_tool_calls": (400, _INVALID),
    "invalid_prediction": (400, _INVALID),
    "invalid_prompt_cache_key": (400, _INVALID),
    "invalid_prompt_cache_options": (400, _INVALID),
    "invalid_prompt_cache_retention": (400, _INVALID),
    "invalid_reasoning_effort": (400, _INVALID),
    "invalid_safety_identifier": (400, _INVALID),
    "invalid_service_tier": (400, _INVALID),
    "invalid_store": (400, _INVALID),
    "invalid_user": (400, _INVALID),
    "invalid_verbosity": (400, _INVALID),
    "missing_prompt": (400, _MISSING),
    "empty_prompt": (400, _VALUE),
    "invalid_echo": (400, _INVALID),
    "invalid_best_of": (400, _VALUE),
    "unsupported_parameter": (400, _INVALID),
    "task_not_supported": (400, _INVALID),
    "unknown_parameter": (400, _INVALID),
    "invalid_prompt": (400, _INVALID),
    "invalid_tokens": (400, _INVALID),
    "invalid_request_timeout": (400, _VALUE),
    "profile_under_way": (400, _INVALID),
    "no_profile": (400, _INVALID),
    "invalid_http": (400, _INVALID),
    "foreign_host": (403, _INVALID),
    "foreign_origin": (403, _INVALID),
    "request_timeout": (408, _INVALID),
    "invalid_json": (400, _INVALID),
    "invalid_content_encoding": (400, _INVALID),
    "request_too_large": (413, _INVALID),
    "unsupported_media_type": (415, _INVALID),
    "not_found": (404, _INVALID),
    "method_not_allowed": (405, _INVALID),
    "model_not_found": (404, _INVALID),
    "invalid_api_key": (401, "authentication_error"),
    "queue_full": (429, "rate_limit_error"),
    "engine_unavailable": (503, _SERVER),
    "deadline_exceeded": (504, _SERVER),
    "internal_error": (500, _SERVER),
}

_HEADERS = {
    "invalid_api_key": {"www-authenticate": "Bearer"},
    "queue_full": {"retry-after": "1"},
    "engine_unavailable": {"retry-after": "5"},  # seconds; an engine takes several to restart
}

_MESSAGE_CHARACTERS = 500
_CLIENT_CLOSED_REQUEST = 499  # only logged: the client is gone; nginx uses this number


class _ErrorResponse(Response):
    """The reply for an error, in the form that clients of its route read."""

    def __init__(self, error: ErrorDetail, status: int, headers: dict[str, str]) -> None:
        super().__init__(ErrorReply(error=error).model_dump_json(), status, headers, "application/json")
        self._error = error
        self._given_headers = headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        if scope["path"] not in system_one.PATHS:
            await super().__call__(scope, receive, send)
            return
        error = self._error
        status, body = system_one.error_of(self.status_code, error.code, error.message, error.param)
        await Response(body, status, self._given_headers, "application/json")(scope, receive, send)


def error_reply(code: str, message: str, param: str | None = None, headers: dict[str, str] | None = None) -> Response:
    """Return the reply for an error code; long messages are cut."""
    status, kind = ERRORS[code]
    if len(message) > _MESSAGE_CHARACTERS:
        message = message[: _MESSAGE_CHARACTERS - 3] + "..."
    error = ErrorDetail(message=message, type=kind, param=param, code=code)
    return _ErrorResponse(error, status, _HEADERS.get(code, {}) | (headers or {}))


def internal_error() -> Response:
    """Return the reply for unexpected errors; the details are only in the log."""
    return error_reply("internal_error", "The server failed on this request; its log says why.")


def install_error_handlers(app: Starlette) -> None:
    """Answer every expected exception with the envelope. Unexpected ones are left to `edge.middleware`."""

    async def handle(request: Request, error: Exception) -> Response:
        try:
            return reply_to(request, error)
        finally:
            forget_frames(error)

    for expected in (RequestError, RequestRefused, EngineUnavailable, HTTPException, ClientDisconnect):
        app.add_exception_handler(expected, handle)


def reply_to(request: Request, error: Exception) -> Response:
    """Return the reply to a request that failed in an expected way; re-raise any other error."""
    match error:
        case RequestError(code="queue_full"):
            seconds = request.app.state.service.admission.retry_after_s()
            return error_reply(error.code, error.message, error.param, {"retry-after": str(seconds)})
        case RequestError():
            return error_reply(error.code, error.message, error.param)
        case RequestRefused():
            message = "The engine failed twice while it worked on this request, which is now refused. Please report it."
            # OpenAI's clients obey this header.
            return error_reply("internal_error", message, headers={"x-should-retry": "false"})
        case TokenizersUnavailable():
            return error_reply("engine_unavailable", error.message)
        case EngineUnavailable():
            return error_reply("engine_unavailable", "The engine is starting, stopping or restarting; try again soon.")
        case HTTPException(status_code=HTTPStatus.NOT_FOUND):
            return error_reply("not_found", "There is no such route; /openapi.json lists all routes.")
        case HTTPException(status_code=HTTPStatus.METHOD_NOT_ALLOWED):
            headers = dict(error.headers or {})
            return error_reply("method_not_allowed", "This route does not support this method.", headers=headers)
        case ClientDisconnect():
            return Response(status_code=_CLIENT_CLOSED_REQUEST)
    raise error


def error_body(request: Request, error: Exception) -> bytes:
    """Return the envelope of a request that failed when its reply had begun; unexpected errors are logged."""
    try:
        reply = reply_to(request, error)
    except Exception:
        logger.exception("The server failed in the middle of a reply.")
        reply = internal_error()
    forget_frames(error)
    return bytes(reply.body)


def error_line(request: Request, error: Exception) -> bytes:
    """Return the line of a state that failed in a batch of System One; logs as `error_body`."""
    said = ErrorReply.model_validate_json(error_body(request, error)).error
    return msgspec.json.encode(system_one.FailedState.of(said.code, said.message)) + b"\n"


def forget_frames(error: BaseException) -> None:
    """Let go of what the frames of a handled error hold, such as the body of its request.

    Frames that hold what holds the error, a future for instance, would keep it all until the next full collection of
    garbage, which a quiet server sees once in hours.
    """
    waiting: list[BaseException | None] = [error]
    seen: set[int] = set()
    while waiting:
        each = waiting.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            traceback.clear_frames(each.__traceback__)
            waiting += each.__cause__, each.__context__
