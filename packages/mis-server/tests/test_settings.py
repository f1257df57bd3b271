"""Options outside their range are refused by name."""

from typing import Any

import pytest

from mis_core.config import EngineConfig
from mis_core.errors import ConfigError
from mis_server.settings import ServerConfig

pytestmark = pytest.mark.quick


def settings(**options: Any) -> ServerConfig:
    return ServerConfig(engine=EngineConfig(model="some/model"), **options)


def test_defaults_are_those_of_the_contract() -> None:
    got = settings()
    assert (got.host, got.port, got.api_key) == ("127.0.0.1", 30000, None)
    assert (got.max_items_per_request, got.max_labels_per_request, got.max_request_tokens) == (20_000, 1024, 2_000_000)
    assert (got.max_sequences_per_request, got.max_queued_sequences) == (4096, 16_384)
    assert (got.max_body_bytes, got.max_queued_requests) == (64 * 1024 * 1024, 1024)


def test_the_served_name_is_the_model_unless_chosen() -> None:
    assert settings().model_name == "some/model"
    assert settings(served_model_name="ranker").model_name == "ranker"


def test_a_file_is_named_without_its_folder_and_suffix() -> None:
    of_file = ServerConfig(engine=EngineConfig(model="/models/Smol-Q4_1.gguf"))
    assert of_file.model_name == "Smol-Q4_1"
    of_parts = ServerConfig(engine=EngineConfig(model="/models/Smol-Q4_1-00001-of-00003.gguf"))
    assert of_parts.model_name == "Smol-Q4_1"


def test_white_space_around_a_key_is_no_part_of_it() -> None:
    got = settings(api_key="secret\n", admin_api_key=" other ")
    assert (got.api_key, got.admin_api_key) == ("secret", "other")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("port", -1),
        ("port", 65536),
        ("max_items_per_request", 0),
        ("max_body_bytes", 0),
        ("shutdown_timeout", -1),
        ("host", ""),  # it would mean all interfaces
        ("api_key", ""),
        ("api_key", " \n"),
        ("api_key", "two words"),
        ("admin_api_key", "two\nlines"),
        ("served_model_name", ""),
    ],
)
def test_an_unusable_value_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=name) as caught:
        settings(**{name: value})
    assert caught.value.option == name
