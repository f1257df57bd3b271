"""Bodies in the OpenAPI document, for routes that read their bodies themselves."""

from typing import Any

from pydantic import BaseModel

from mis_core.tasks.fields.body import Body
from mis_core.tasks.fields.described import inlined, schema_of

EVENTS: dict[int | str, Any] = {200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}}
"""What FastAPI's `responses` needs for a reply that may be a stream of events."""


def described(body: type[Body] | type[BaseModel], *examples: Any) -> dict[str, Any]:
    """Return what FastAPI's `openapi_extra` needs for a body; nothing in it refers to another schema."""
    if issubclass(body, Body):
        schema = schema_of(body, examples)
    else:
        schema = body.model_json_schema()
        schema = inlined(schema, {f"#/$defs/{name}": part for name, part in schema.pop("$defs", {}).items()})
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}
