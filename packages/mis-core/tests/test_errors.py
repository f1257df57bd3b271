"""Errors are sentences."""

import pickle

import pytest

from mis_core.errors import ConfigError, EngineUnavailable, MisError, ModelError, RequestError


@pytest.mark.parametrize(
    "error",
    [
        ConfigError("a sentence.", "dtype"),
        RequestError("empty_items", "a sentence.", "items"),
        EngineUnavailable("a sentence."),
        ModelError("a sentence."),
    ],
)
def test_an_error_reads_as_its_sentence(error: MisError) -> None:
    assert str(error) == error.message == "a sentence."


def test_what_an_error_is_about_survives_a_copy() -> None:
    error = pickle.loads(pickle.dumps(RequestError("empty_items", "a sentence.", "items")))
    assert (error.code, error.message, error.param) == ("empty_items", "a sentence.", "items")
    assert str(MisError()) == ""
