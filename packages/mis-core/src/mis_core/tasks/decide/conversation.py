"""The input of decisions: a text, or messages and tool records, as messages that a chat template can render.

Templates differ in what they know of tools, so calls and their outputs are written as text, the same for every model.
"""

from typing import TypedDict

from mis_core.errors import RequestError
from mis_core.tasks.decide.content import OUTPUT, TEXT, TEXT_OR_JSON, Content, read_content
from mis_core.tasks.fields.field import Field

MAX_MESSAGES = 10_000

_CALLS = {"function_call": "arguments", "custom_tool_call": "input"}
_OUTPUTS = {"function_call_output": "function_call", "custom_tool_call_output": "custom_tool_call"}
_CONTENT = {"user": TEXT_OR_JSON, "developer": TEXT, "system": TEXT, "assistant": OUTPUT}
_ROLES = {"developer": "system"}  # few templates know developers
_STATUSES = ("in_progress", "completed", "incomplete")


class Message(TypedDict):
    """A message as chat templates read it; the role is `system`, `user` or `assistant`."""

    role: str
    content: str


def read_conversation(value: object) -> list[Message]:
    """Read the field `input`.

    Raises:
        RequestError: `empty_input`, `invalid_input`, `unknown_parameter` or `unsupported_parameter`.
    """
    source = Field(value, "input")
    if isinstance(value, (str, list, tuple)) and not value:
        raise RequestError("empty_input", "input must not be empty.", "input")
    if isinstance(value, str):
        return [Message(role="user", content=source.text())]
    calls: dict[tuple[str, str], str] = {}
    return [_read_entry(entry, calls) for entry in source.elements(1, MAX_MESSAGES)]


def state_of(conversation: list[Message]) -> Content:
    """Return messages as a prompt has them that knows a state only: of a single one of the user its text."""
    if len(conversation) == 1 and conversation[0]["role"] == "user":
        return conversation[0]["content"]
    return [dict(message) for message in conversation]


def _read_entry(entry: Field, calls: dict[tuple[str, str], str]) -> Message:
    """Read a message or a record; `calls` are the names of tools by type and id of the calls before."""
    given = entry.member("type")
    name = "message" if given is None else given
    kind = Field(name, f"{entry.path}.type").one_of("message", *_CALLS, *_OUTPUTS)
    if kind == "message":
        return _read_message(entry)
    return _read_call(entry, kind, calls) if kind in _CALLS else _read_output(entry, kind, calls)


def _read_message(entry: Field) -> Message:
    role = Field(entry.member("role"), f"{entry.path}.role").one_of(*_CONTENT)
    fields = entry.members(("role", "content"), ("type", "phase") if role == "assistant" else ("type",))
    if "phase" in fields:
        fields["phase"].one_of("commentary", "final_answer")
    return Message(role=_ROLES.get(role, role), content=read_content(fields["content"], _CONTENT[role]))


def _read_call(entry: Field, kind: str, calls: dict[tuple[str, str], str]) -> Message:
    argument = _CALLS[kind]
    fields = entry.members(("type", "call_id", "name", argument), ("id", "namespace", "status"))
    _check_record(fields)
    call_id, tool = fields["call_id"].text(), fields["name"].text()
    if "namespace" in fields:
        tool = f"{fields['namespace'].text()}.{tool}"
    if (kind, call_id) in calls:
        raise fields["call_id"].error("is already the id of an earlier call.")
    calls[kind, call_id] = tool
    return Message(role="assistant", content=f"Call {call_id} of {tool}:\n{fields[argument].text()}")


def _read_output(entry: Field, kind: str, calls: dict[tuple[str, str], str]) -> Message:
    fields = entry.members(("type", "call_id", "output"), ("id", "status"))
    _check_record(fields)
    call_id = fields["call_id"].text()
    tool = calls.get((_OUTPUTS[kind], call_id))
    if tool is None:
        raise fields["call_id"].error(f"must be the id of a {_OUTPUTS[kind]} before it.")
    return Message(role="user", content=f"Output {call_id} of {tool}:\n{read_content(fields['output'], TEXT)}")


def _check_record(fields: dict[str, Field]) -> None:
    if "id" in fields:
        fields["id"].text()
    if "status" in fields:
        fields["status"].one_of(*_STATUSES)
