"""The OpenAPI document describes what the server does."""

from collections.abc import Callable
from typing import Any

import httpx
import pytest

import mis_server
from mis_core.tasks.score.body import ScoreBody
from mis_server.schemas.system_one import PATHS


@pytest.fixture
def document(http: httpx.Client) -> dict[str, Any]:
    return http.get("/openapi.json").json()


def test_the_body_of_score_has_the_fields_that_validation_knows(document: dict[str, Any]) -> None:
    schema = document["paths"]["/v1/score"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert set(schema["properties"]) == set(ScoreBody.__struct_fields__)
    assert set(schema["required"]) == {"query", "items"}
    assert schema["additionalProperties"] is False


def test_lists_that_are_encoded_separately_are_documented(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    lists = schemas["ScoreReply"]["properties"]["scores"]
    row, missing = lists["items"]["anyOf"]
    assert (lists["type"], row, missing) == (
        "array",
        {"type": "array", "items": {"type": "number"}},
        {"type": "null"},
    )
    assert schemas["ItemError"]["required"] == ["index", "code", "message", "param"]
    assert not {"errors", "layout"} & set(schemas["ScoreReply"]["required"])
    assert schemas["TokenizeReply"]["properties"]["tokens"]["items"] == {"type": "integer"}
    assert schemas["DetokenizeReply"]["properties"]["prompt"]["type"] == "string"


def test_every_route_documents_the_error_envelope(document: dict[str, Any]) -> None:
    assert document["info"]["version"] == mis_server.__version__
    for path, operations in document["paths"].items():
        form = "SystemOneError" if path in PATHS else "ErrorReply"
        for operation in operations.values():
            reply = operation["responses"]["default"]["content"]["application/json"]["schema"]
            assert reply == {"$ref": f"#/components/schemas/{form}"}


def test_the_document_is_behind_the_key(connect: Callable[..., httpx.Client]) -> None:
    assert connect(api_key="secret").get("/openapi.json").status_code == 401
