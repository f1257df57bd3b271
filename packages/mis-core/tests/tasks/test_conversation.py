"""The input of decisions: what it may be, and the messages that it becomes."""

from typing import Any

import pytest

from mis_core.errors import RequestError
from mis_core.tasks.decide.conversation import read_conversation

BREAK = {"mode": "explicit"}
CALL = {"type": "function_call", "call_id": "c1", "name": "find", "arguments": '{"a": 1}'}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "found"}
TOOL = {"type": "custom_tool_call", "call_id": "c1", "name": "sh", "input": "ls"}


def text(value: Any, **more: Any) -> dict[str, Any]:
    return {"type": "input_text", "text": value, **more}


def user(*parts: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(parts)}]


@pytest.mark.parametrize(
    ("value", "messages"),
    [
        ("Hello.", [("user", "Hello.")]),
        ([{"role": "user", "content": "a"}], [("user", "a")]),
        ([{"role": "user", "content": ""}], [("user", "")]),
        ([{"role": "system", "content": "a", "type": "message"}], [("system", "a")]),
        ([{"role": "developer", "content": [text("a", prompt_cache_breakpoint=BREAK)]}], [("system", "a")]),
        (user(text("a", prompt_cache_breakpoint=None), text("b")), [("user", "a\nb")]),
        (user(text("a"), {"type": "input_json", "data": {"é": [1, None, True]}}), [("user", 'a\n{"é":[1,null,true]}')]),
        (user({"type": "input_json", "data": [{"a": 1}, {}]}), [("user", '[{"a":1},{}]')]),
        (
            [
                {
                    "role": "assistant",
                    "phase": "final_answer",
                    "content": [{"type": "output_text", "text": "a"}, {"type": "refusal", "refusal": "no"}],
                }
            ],
            [("assistant", "a\nno")],
        ),
        ([{"role": "assistant", "phase": None, "content": "a"}], [("assistant", "a")]),
        (
            [CALL | {"id": "x", "namespace": "docs", "status": "completed"}, OUTPUT | {"id": None, "status": None}],
            [("assistant", 'Call c1 of docs.find:\n{"a": 1}'), ("user", "Output c1 of docs.find:\nfound")],
        ),
        (
            [TOOL, {"type": "custom_tool_call_output", "call_id": "c1", "output": [text("x"), text("y")]}, CALL],
            [("assistant", "Call c1 of sh:\nls"), ("user", "Output c1 of sh:\nx\ny"), ("assistant", None)],
        ),
    ],
)
def test_everything_that_the_client_can_send_becomes_messages(value: Any, messages: list[tuple[str, str]]) -> None:
    read = read_conversation(value)
    assert [message["role"] for message in read] == [role for role, _ in messages]
    for message, (_, content) in zip(read, messages, strict=True):
        assert content is None or message["content"] == content


def nested(levels: int) -> dict[str, Any]:
    value: Any = {}
    for _ in range(levels - 1):
        value = {"a": value}
    return value


DATA = "input[0].content[0].data"
LARGEST = {"a": "x" * (256 * 1024 - len('{"a":""}'))}


@pytest.mark.parametrize("data", [nested(32), {"a": [0] * 9_998}, [{}] * 9_999, LARGEST, {"a": "é" * 1000}])
def test_json_up_to_its_limits_is_read(data: Any) -> None:
    (message,) = read_conversation(user({"type": "input_json", "data": data}))
    assert message["content"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (nested(33), "deeper than 32"),
        ({"a": [0] * 9_999}, "more than 10000 values"),
        ([{}] * 10_000, "more than 10000 values"),
        (LARGEST | {"b": 1}, "at most 262144"),
        ({"a": "é" * (128 * 1024)}, "at most 262144"),
        ([{}, 1], "an object or a list of objects"),
        ("text", "an object or a list of objects"),
        (None, "an object or a list of objects"),
        ({"a": float("nan")}, "is not JSON"),
        ({"a": {1, 2}}, "is not JSON"),
        ({1: 2}, "a name that is not a text"),
        ({"a": "\ud800"}, "unpaired surrogate"),
    ],
)
def test_json_beyond_its_limits_is_refused(data: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message) as refused:
        read_conversation(user({"type": "input_json", "data": data}))
    assert (refused.value.code, refused.value.param) == ("invalid_input", DATA)


IMAGE = {"type": "input_image", "image_url": "https://a/b.png"}


@pytest.mark.parametrize(
    ("value", "code", "param"),
    [
        ("", "empty_input", "input"),
        ([], "empty_input", "input"),
        (7, "invalid_input", "input"),
        ({"role": "user"}, "invalid_input", "input"),
        ("\ud800", "invalid_input", "input"),
        ([7], "invalid_input", "input[0]"),
        ([{}], "invalid_input", "input[0].role"),
        ([{"role": "tool", "content": "a"}], "invalid_input", "input[0].role"),
        ([{"type": "reasoning"}], "invalid_input", "input[0].type"),
        ([{"role": "user"}], "invalid_input", "input[0]"),
        ([{"role": "user", "content": None}], "invalid_input", "input[0].content"),
        ([{"role": "user", "content": "a", "phase": "commentary"}], "unknown_parameter", "input[0].phase"),
        ([{"role": "assistant", "content": "a", "phase": "x"}], "invalid_input", "input[0].phase"),
        ([{"role": "assistant", "content": [text("a")]}], "invalid_input", "input[0].content[0].type"),
        ([{"role": "system", "content": [{"type": "input_json", "data": {}}]}], "invalid_input", None),
        (user("a"), "invalid_input", "input[0].content[0]"),
        (user({"type": "input_text"}), "invalid_input", "input[0].content[0]"),
        (user(text(7)), "invalid_input", "input[0].content[0].text"),
        (user(text("a", prompt_cache_breakpoint={"mode": "x"})), "invalid_input", None),
        (user(text("a", extra=1)), "unknown_parameter", "input[0].content[0].extra"),
        ([{"role": "user", "content": "a"}, *user(IMAGE)], "unsupported_parameter", "input[1].content[0]"),
        ([{"role": "system", "content": [IMAGE]}], "unsupported_parameter", "input[0].content[0]"),
        ([CALL, OUTPUT | {"output": [IMAGE]}], "unsupported_parameter", "input[1].output[0]"),
        ([OUTPUT], "invalid_input", "input[0].call_id"),
        ([OUTPUT, CALL], "invalid_input", "input[0].call_id"),
        ([CALL, CALL], "invalid_input", "input[1].call_id"),
        ([TOOL, OUTPUT], "invalid_input", "input[1].call_id"),
        ([CALL | {"status": "done"}], "invalid_input", "input[0].status"),
        ([CALL | {"id": 7}], "invalid_input", "input[0].id"),
        ([CALL | {"arguments": {}}], "invalid_input", "input[0].arguments"),
        ([{"role": "user", "content": "a"}] * 10_001, "invalid_input", "input"),
    ],
)
def test_what_is_wrong_is_named(value: Any, code: str, param: str | None) -> None:
    with pytest.raises(RequestError) as refused:
        read_conversation(value)
    assert refused.value.code == code
    assert param is None or refused.value.param == param
    assert len(refused.value.message) < 500
