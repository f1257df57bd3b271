"""Members of `messages`, `input` and `questions` have readers by hand: they read what documents say, and no more."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from declared_bodies import values, wrong
from field_tables import DECLARED
from mis_core.errors import RequestError
from mis_core.tasks.decide.conversation import read_conversation
from mis_core.tasks.decide.questions import MAX_QUESTIONS, read_question
from mis_core.tasks.decide.system_one.questions import read_question as read_system_one_question
from mis_core.tasks.fields.described import schema_of
from mis_core.tasks.fields.field import Field
from mis_core.tasks.text.messages import read_messages

MEMBERS = {
    "messages": "/v1/chat/completions",
    "input": "/v1/decisions",
    "questions": "/v1/decisions",
    "questions by their ids": "/v1/systemone",
}
of_each_reader = pytest.mark.parametrize(("name", "route"), MEMBERS.items(), ids=MEMBERS)
many = settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)

UNSAID = {
    "messages": ["content must be a text, not null."],  # of an assistant, without a refusal and calls
    "input": ["must be the id of a ", "is already the id of an earlier call."],
    "questions": ["is already the value of an earlier choice."],
    "questions by their ids": ["needs instructions, or criteria for true or false."],
}
"""What no JSON schema of a member can say: it depends on other members."""


def read_questions(value: object) -> object:
    return [read_question(question) for question in Field(value, "questions").elements(1, MAX_QUESTIONS)]


def read_by_ids(value: object) -> object:
    questions = Field(value, "questions").entries(1, MAX_QUESTIONS)
    return [read_system_one_question(name, question) for name, question in questions.items()]


READ: dict[str, Callable[[object], object]] = {
    "messages": read_messages,
    "input": read_conversation,
    "questions": read_questions,
    "questions by their ids": read_by_ids,
}


def reason(name: str, value: object) -> str | None:
    """Why a value is refused, None if it is read."""
    try:
        READ[name](value)
    except RequestError as error:
        return error.message
    return None


def is_unsaid(name: str, message: str) -> bool:
    return any(each in message for each in UNSAID[name])


@of_each_reader
def test_what_documents_say_is_read(route: str, name: str) -> None:
    found: Counter[bool] = Counter()
    schema = schema_at(route, name)

    @many
    @given(value=values(schema))
    def run(value: object) -> None:
        message = reason(name, value)
        assert message is None or is_unsaid(name, message), message
        found[message is None] += 1

    run()
    assert found[True] > 20  # of 100


@of_each_reader
def test_what_documents_do_not_say_is_refused(route: str, name: str) -> None:
    found: Counter[bool] = Counter()
    schema = schema_at(route, name)

    @many
    @given(value=wrong(schema))
    def run(value: object) -> None:
        message = reason(name, value)
        assert message is not None
        found[not is_unsaid(name, message)] += 1

    run()
    assert found[True] > found[False]


def schema_at(route: str, name: str) -> dict[str, Any]:
    return schema_of(DECLARED[route])["properties"][name.partition(" ")[0]]


def alternatives(route: str, name: str) -> list[dict[str, Any]]:
    """The schemas of an element of a list, or of a member."""
    field = schema_at(route, name)
    lists = [each["items"] for each in field.get("anyOf", [field]) if each.get("type") == "array"]
    (inner,) = lists or [field["additionalProperties"]]
    return inner["anyOf"]


@of_each_reader
@settings(many, max_examples=15)
@given(data=st.data())
def test_every_member_is_known_to_its_reader_and_no_other_one(route: str, name: str, data: st.DataObject) -> None:
    by_ids = schema_at(route, name).get("type") == "object"

    def reason_of(member: dict[str, Any]) -> str | None:
        return reason(name, {"q": member} if by_ids else [member])

    for schema in alternatives(route, name):
        known, least = (
            schema["properties"],
            {each: data.draw(values(schema["properties"][each])) for each in schema["required"]},
        )
        for member, of_member in known.items():
            whole = least | {member: data.draw(values(of_member))}
            message = reason_of(whole)
            assert message is None or is_unsaid(name, message), message
            if {"type", "enum", "anyOf"} & of_member.keys():  # else nothing is wrong
                assert reason_of(least | {member: data.draw(wrong(of_member))}), member
        for member in ("nothing", "roles", "y_type" if by_ids else "x_type"):
            assert "unknown field" in str(reason_of(least | {member: None}))
        for member in schema["required"]:
            assert reason_of({each: least[each] for each in least if each != member}), member
