"""Bodies in the OpenAPI document, for routes that read their bodies themselves."""

from typing import Any

from pydantic import BaseModel

EVENTS: dict[int | str, Any] = {200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}}
"""What FastAPI's `responses` needs for a reply that may be a stream of events."""


def described(body: type[BaseModel]) -> dict[str, Any]:
    """Return what FastAPI's `openapi_extra` needs for a body of this model, which may hold other models."""
    schema = body.model_json_schema()
    content = {"application/json": {"schema": _inlined(schema, schema.pop("$defs", {}))}}
    return {"requestBody": {"required": True, "content": content}}


def _inlined(schema: Any, models: dict[str, Any]) -> Any:
    """Put models where they are referred to: references would be looked up from the root of the document."""
    if isinstance(schema, list):
        return [_inlined(each, models) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _inlined(models[schema["$ref"].rpartition("/")[2]], models)
    return {name: _inlined(each, models) for name, each in schema.items()}
