"""Fields of declared bodies: what a caller may send, and what errors say."""

from collections import UserDict
from decimal import Decimal
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import pytest
from msgspec import Meta, inspect

from mis_core.errors import RequestError
from mis_core.tasks.fields.body import Body, about, optional, read_body, read_element, refused
from mis_core.tasks.fields.types import in_words


class Zoo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    cages: int = 0


class ZooBody(Body, frozen=True, kw_only=True):
    animals: Annotated[list[Any], Meta(min_length=1), about("All of them.", each=str | Zoo, empty="empty_animals")]
    count: Annotated[int, Meta(ge=1, le=9), optional("How many.")] = 3
    share: Annotated[float, Meta(gt=0, le=1), about("How much.")] = 1.0
    order: Annotated[Literal["given", "sorted"], about("In which order.")] = "given"
    zoo: Annotated[Zoo | None, about("Where.")] = None
    notes: Annotated[dict[str, Any] | None, about("Whatever.")] = None
    tools: Annotated[Annotated[list[Any], Meta(max_length=0)] | None, refused("[]")] = None


def refusal(**fields: object) -> RequestError:
    with pytest.raises(RequestError) as caught:
        read_body(ZooBody, {"animals": ["cat"], **fields})
    return caught.value


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"count": 0}, "count must be a whole number from 1 to 9."),
        ({"count": "x"}, "count must be a whole number from 1 to 9, not 'x'."),
        ({"count": True}, "count must be a whole number from 1 to 9, not bool."),
        ({"count": 10**400}, "count must be a whole number from 1 to 9."),
        ({"share": 0}, "share must be a finite number above 0 and of at most 1."),
        ({"share": float("nan")}, "share must be a finite number above 0 and of at most 1."),
        ({"order": "x"}, 'order must be "given" or "sorted", not \'x\'.'),
        ({"zoo": 5}, "zoo must be an object with name, not int."),
        ({"zoo": {}}, "zoo needs the field name."),
        ({"zoo": {"name": 5}}, "zoo.name must be a text, not int."),
        ({"zoo": {"name": "x", "owner": 1}}, "zoo has an unknown field 'owner'."),
        ({"animals": []}, "animals must not be empty."),
        ({"animals": "cat"}, "animals must be a list, not 'cat'."),
        ({"tools": [1]}, "tools is not supported here; leave it out."),
        ({"zzz": 1, "yyy": 1}, "Unknown field 'yyy'."),
    ],
)
def test_errors_say_what_a_field_must_be(fields: dict[str, Any], message: str) -> None:
    error = refusal(**fields)
    assert error.message.startswith(message)
    assert error.param == min(fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"order": " - at `$[0]"},
        {"order": "x - at `$.a"},
        {"zoo": {"x` - at `$.cages": 1, "name": "a"}},
        {"zoo": {" - at `$[0].name\n" + "A" * 60_000: 1, "name": "a"}},
        {"order": "\n - at `$[0].a"},
    ],
)
def test_texts_of_callers_are_not_taken_for_msgspecs(fields: dict[str, Any]) -> None:
    error = refusal(**fields)
    assert error.param in fields
    assert len(error.message) < 300


def test_what_is_repeated_of_a_text_is_cut_off() -> None:
    assert refusal(order="x" * 70).message.endswith(f"not '{'x' * 64}'.")


def test_what_python_has_for_json_is_taken() -> None:
    body = read_body(ZooBody, UserDict(animals=("a",), count=np.int64(4), share=np.float32(0.5), notes=UserDict(a=1)))
    assert (body.animals, body.count, body.share, body.notes) == (["a"], 4, 0.5, {"a": 1})
    assert read_body(ZooBody, {"animals": ["a"], "zoo": UserDict(name="x")}).zoo == Zoo("x")


@pytest.mark.parametrize("value", [range(2), {1, 2}, np.array([1]), Decimal(1), object(), "\ud800", ["\ud800"]])
@pytest.mark.parametrize("name", ["count", "share", "order", "zoo", "notes"])
def test_what_only_looks_like_json_is_refused(name: str, value: object) -> None:
    error = refusal(**{name: value})
    assert (error.code, error.param) == (f"invalid_{name}", name)
    error.message.encode()


def test_null_is_left_out_where_the_declaration_says_so() -> None:
    assert read_body(ZooBody, {"animals": ["a"], "count": None, "zoo": None}).count == 3
    assert refusal(share=None).code == "invalid_share"
    assert refusal(animals=None).code == "missing_animals"


def test_elements_are_read_each_by_itself() -> None:
    assert read_element(ZooBody, "animals", 0, "cat") == "cat"
    assert read_element(ZooBody, "animals", 0, {"name": "x"}) == Zoo("x")
    for value in (5, {"name": 5}, None, "\ud800", {"name": "\ud800"}):
        with pytest.raises(RequestError) as caught:
            read_element(ZooBody, "animals", 7, value)
        assert (caught.value.code, caught.value.param) == ("invalid_animals", "animals")
        assert value != 5 or caught.value.message == "animals[7] must be a text or an object with name, not int."


@pytest.mark.parametrize(
    ("of", "noun"),
    [
        (Annotated[int, Meta(le=5)], "a whole number of at most 5"),
        (Annotated[int, Meta(gt=1, lt=5)], "a whole number from 2 to 4"),
        (Annotated[float, Meta(ge=0, lt=1)], "a finite number of at least 0 and below 1"),
        (Literal[False], "false"),
        (dict[str, int] | None, "an object"),
        (Any, "anything"),
        (None, "null"),
    ],
)
def test_types_in_words(of: Any, noun: str) -> None:
    assert in_words(inspect.type_info(of)) == noun
