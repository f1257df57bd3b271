"""Bodies in the OpenAPI document, for routes that read their bodies themselves."""

from typing import Any

from mis_core.tasks.fields.body import Body
from mis_core.tasks.fields.described import schema_of

_EVENT = {"type": "object", "properties": {"data": {"type": "string"}}, "required": ["data"]}

EVENTS: dict[int | str, Any] = {200: {"content": {"text/event-stream": {"schema": _EVENT}}}}
"""What FastAPI's `responses` needs for a reply that may be a stream of events. The schema is that of one event."""


def described(body: type[Body], *examples: Any) -> dict[str, Any]:
    """Return what FastAPI's `openapi_extra` needs for a body, with examples of it."""
    content = {"application/json": {"schema": schema_of(body, examples)}}
    return {"requestBody": {"required": True, "content": content}}
