"""Messages of a chat as documents have them. `messages` reads them: what a message may hold depends on its role."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct


class TextPart(Struct, frozen=True, tag_field="type", tag="text"):
    """A text. Members that are not named here have no effect."""

    text: str


class InputTextPart(TextPart, frozen=True, tag_field="type", tag="input_text"):
    """The same as `text`."""


class OutputTextPart(TextPart, frozen=True, tag_field="type", tag="output_text"):
    """The same as `text`."""


class RefusalPart(Struct, frozen=True, tag_field="type", tag="refusal"):
    """How the assistant refused, read as a text."""

    refusal: str


Content = str | list[TextPart | InputTextPart | OutputTextPart | RefusalPart]

_CONTENT = Meta(description="A text, or parts of text. Images and audio are refused.")


class UserChatMessage(Struct, frozen=True, forbid_unknown_fields=True, tag_field="role", tag="user"):
    """A message of the user. Parts are joined by line breaks."""

    content: Annotated[Content, _CONTENT]
    name: str | None = None


class SystemChatMessage(UserChatMessage, frozen=True, tag_field="role", tag="system"):
    """A message of the system."""


class DeveloperChatMessage(UserChatMessage, frozen=True, tag_field="role", tag="developer"):
    """A message of the developer, rendered as one of the system."""


class ToolChatMessage(UserChatMessage, frozen=True, tag_field="role", tag="tool"):
    """What a tool answered."""

    tool_call_id: str | None = None


class CalledFunction(Struct, frozen=True):
    """A function and what it was called with."""

    name: str
    arguments: Annotated[
        str,
        Meta(
            description="The text of a JSON object, or an empty text.",
            extra_json_schema={"contentMediaType": "application/json"},
        ),
    ]


class ToolCall(Struct, frozen=True):
    """A call of a function. Members that are not named here have no effect."""

    function: CalledFunction
    id: str | None = None
    type: Literal["function"] | None = None


class AssistantChatMessage(Struct, frozen=True, forbid_unknown_fields=True, tag_field="role", tag="assistant"):
    """A message of the assistant."""

    content: Annotated[
        Content | None, Meta(description="As of other messages; required without a refusal or calls of tools.")
    ] = None
    name: str | None = None
    refusal: Annotated[str | None, Meta(description="Read where there is no content.")] = None
    tool_calls: list[ToolCall] | None = None
    reasoning_content: str | None = None
    annotations: Annotated[Any, Meta(description="No effect.")] = None
    audio: None = None
    function_call: None = None


ChatMessage = UserChatMessage | SystemChatMessage | DeveloperChatMessage | AssistantChatMessage | ToolChatMessage
"""A message of any role."""
