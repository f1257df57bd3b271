"""One table from error codes to statuses, equal to the contract's."""

import ast
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

import mis_core
import mis_server
from mis_server.errors import ERRORS, error_reply

pytestmark = pytest.mark.quick

# The rows of the HTTP contract: codes, status, type.
CONTRACT = """
missing_query missing_items missing_label_token_ids                                     400 missing_parameter_error
empty_query empty_items empty_label_token_ids                                           400 invalid_value_error
invalid_query_type invalid_items_type mixed_input_types invalid_label_token_ids_type    400 invalid_request_error
invalid_token_id_type                                                                   400 invalid_request_error
negative_token_id                                                                       400 invalid_value_error
token_id_exceeds_vocab                                                                  422 invalid_value_error
too_many_items too_many_labels too_many_sequences too_many_tokens                       400 invalid_value_error
empty_label                                                                             422 invalid_value_error
unknown_label                                                                           422 invalid_value_error
invalid_apply_softmax_type invalid_item_first_type                                      400 invalid_request_error
invalid_temperature                                                                     400 invalid_value_error
context_length_exceeded                                                                 400 invalid_request_error
delimiter_in_input                                                                      400 invalid_value_error
invalid_labels_type empty_labels conflicting_labels                                     400 invalid_request_error
label_count_mismatch                                                                    400 invalid_value_error
invalid_model_type invalid_cache_salt_type invalid_return_token_logprobs_type           400 invalid_request_error
deadline_exceeded                                                                       504 server_error
unknown_parameter                                                                       400 invalid_request_error
invalid_json                                                                            400 invalid_request_error
request_too_large                                                                       413 invalid_request_error
unsupported_media_type                                                                  415 invalid_request_error
not_found                                                                               404 invalid_request_error
method_not_allowed                                                                      405 invalid_request_error
model_not_found                                                                         404 invalid_request_error
invalid_api_key                                                                         401 authentication_error
queue_full                                                                              429 rate_limit_error
engine_unavailable                                                                      503 server_error
internal_error                                                                          500 server_error
"""

# Those of the other tasks, likewise.
TASKS = """
missing_prompt                                                                          400 missing_parameter_error
empty_prompt invalid_best_of                                                            400 invalid_value_error
invalid_echo                                                                            400 invalid_request_error
missing_input missing_questions missing_messages                                        400 missing_parameter_error
empty_input empty_questions empty_messages                                              400 invalid_value_error
invalid_input invalid_questions invalid_messages                                        400 invalid_request_error
invalid_choice_order invalid_on_error invalid_calibration invalid_x_calibration           400 invalid_value_error
missing_state missing_states                                                            400 missing_parameter_error
empty_states invalid_x_on_error invalid_x_choice_order invalid_x_abstain_below          400 invalid_value_error
invalid_state invalid_states invalid_x_cache_salt_type                                  400 invalid_request_error
missing_documents                                                                       400 missing_parameter_error
empty_documents invalid_top_n invalid_max_tokens_per_doc                                400 invalid_value_error
invalid_documents invalid_return_documents invalid_instruction_type                     400 invalid_request_error
invalid_max_chunks_per_doc invalid_priority invalid_truncation                          400 invalid_request_error
invalid_max_tokens invalid_max_completion_tokens invalid_n invalid_top_p invalid_seed   400 invalid_value_error
invalid_logit_bias invalid_stop invalid_logprobs invalid_top_logprobs                   400 invalid_value_error
invalid_chat_template_kwargs                                                            400 invalid_value_error
invalid_top_k invalid_min_p                                                             400 invalid_value_error
invalid_stream invalid_stream_options invalid_stop_token_ids invalid_ignore_eos         400 invalid_request_error
invalid_add_generation_prompt invalid_continue_final_message                            400 invalid_request_error
invalid_frequency_penalty invalid_presence_penalty invalid_metadata invalid_prediction  400 invalid_request_error
invalid_parallel_tool_calls invalid_prompt_cache_key invalid_prompt_cache_options       400 invalid_request_error
invalid_prompt_cache_retention invalid_reasoning_effort invalid_safety_identifier       400 invalid_request_error
invalid_service_tier invalid_store invalid_user invalid_verbosity                       400 invalid_request_error
invalid_use_activation invalid_activation invalid_softmax                               400 invalid_request_error
invalid_request_id                                                                      400 invalid_request_error
too_few_label_tokens label_not_single_token                                             422 invalid_value_error
unsupported_parameter task_not_supported                                                400 invalid_request_error
"""


def rows(table: str) -> Iterator[tuple[str, tuple[int, str]]]:
    for line in table.strip().splitlines():
        *codes, status, kind = line.split()
        for code in codes:
            yield code, (int(status), kind)


# Beyond the contract: layouts, where the operator lets requests choose them; other routes; HTTP itself.
BEYOND = {
    "invalid_scoring_algorithm": (400, "invalid_value_error"),
    "invalid_mask_impl": (400, "invalid_value_error"),
    "invalid_multi_item_scoring_chunk_size": (400, "invalid_value_error"),
    "invalid_request_timeout": (400, "invalid_value_error"),
    "invalid_prompt": (400, "invalid_request_error"),
    "invalid_tokens": (400, "invalid_request_error"),
    "profile_under_way": (400, "invalid_request_error"),
    "no_profile": (400, "invalid_request_error"),
    "invalid_http": (400, "invalid_request_error"),
    "invalid_content_encoding": (400, "invalid_request_error"),
    "invalid_add_special_tokens_type": (400, "invalid_request_error"),
    "invalid_return_layout_type": (400, "invalid_request_error"),
    "foreign_host": (403, "invalid_request_error"),
    "foreign_origin": (403, "invalid_request_error"),
    "request_timeout": (408, "invalid_request_error"),
    "tokenizer_failed": (400, "invalid_request_error"),
}


def test_the_table_is_the_contract() -> None:
    assert dict(rows(CONTRACT)) | dict(rows(TASKS)) | BEYOND == ERRORS


def raised_codes() -> Iterator[str]:
    """Yield the literal codes of every `RequestError(...)` in mis_core and mis_server."""
    for package in (mis_core, mis_server):
        assert package.__file__ is not None
        for path in Path(package.__file__).parent.rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                match node:
                    case ast.Call(func=ast.Name("RequestError"), args=[ast.Constant(code), *_]):
                        yield str(code)


def test_every_code_that_is_raised_has_a_row() -> None:
    codes = set(raised_codes())
    assert len(codes) >= 5  # the search finds something
    assert codes <= set(ERRORS)


@pytest.mark.parametrize("code", ERRORS)
def test_a_reply_has_the_status_and_the_envelope_of_its_code(code: str) -> None:
    reply = error_reply(code, "What to do.", "query")
    status, kind = ERRORS[code]
    assert reply.status_code == status
    body = httpx.Response(status, content=bytes(reply.body)).json()
    assert body == {"error": {"message": "What to do.", "type": kind, "param": "query", "code": code}}
    assert ("retry-after" in reply.headers) == (status in (429, 503))


def test_long_messages_are_capped() -> None:
    assert len(error_reply("invalid_json", "x" * 100_000).body) < 1000


def test_an_unknown_route_is_answered_with_the_envelope(http: httpx.Client) -> None:
    for path in ("/nowhere", "/v1/score/", "/docs", "/"):
        reply = http.get(path)
        assert (reply.status_code, reply.json()["error"]["code"]) == (404, "not_found")


def test_an_unknown_method_is_answered_with_the_envelope(http: httpx.Client) -> None:
    reply = http.get("/v1/score")
    assert (reply.status_code, reply.json()["error"]["code"]) == (405, "method_not_allowed")
    assert reply.headers["allow"] == "POST"
