"""Fields of OpenAI's bodies: null, kinds, and what is refused by name."""

import pytest

from mis_core.errors import RequestError
from mis_core.tasks.fields.openai import check_ignored, check_model, read_flag, refuse_unsupported

IGNORED = ("frequency_penalty", "metadata", "store", "user")


def refused(check, *arguments: object) -> RequestError:
    with pytest.raises(RequestError) as caught:
        check(*arguments)
    return caught.value


def test_ignored_fields_of_the_right_kind_are_accepted() -> None:
    check_ignored({"frequency_penalty": 1, "metadata": {"a": "b"}, "store": True, "user": None}, IGNORED)


@pytest.mark.parametrize(
    ("name", "value"), [("frequency_penalty", True), ("metadata", []), ("store", 1), ("user", 7), ("user", False)]
)
def test_ignored_fields_of_another_kind_are_refused(name: str, value: object) -> None:
    refusal = refused(check_ignored, {name: value}, IGNORED)
    assert (refusal.code, refusal.param) == (f"invalid_{name}", name)


def test_unsupported_fields_are_refused_unless_harmless() -> None:
    names = {"tools": lambda value: value == []}
    refuse_unsupported({"tools": None, "other": 1}, names)
    refuse_unsupported({"tools": []}, names)
    refusal = refused(refuse_unsupported, {"tools": [1]}, names)
    assert (refusal.code, refusal.param) == ("unsupported_parameter", "tools")


def test_only_served_models_are_found() -> None:
    check_model({}, ("a",))
    check_model({"model": "a"}, ("a", "b"))
    check_model({"model": "c"}, None)
    assert refused(check_model, {"model": "c"}, ("a",)).code == "model_not_found"
    assert refused(check_model, {"model": 7}, None).code == "invalid_model_type"


def test_a_flag_is_a_boolean_or_missing() -> None:
    assert read_flag({"stream": True}, "stream")
    assert read_flag({"stream": None}, "stream", default=True)
    assert refused(read_flag, {"stream": 1}, "stream").code == "invalid_stream"
