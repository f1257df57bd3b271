"""A body is declared once: its reading, its errors, the OpenAPI document and the reference follow the declaration."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st
from msgspec.inspect import AnyType

from declared_bodies import bodies
from field_tables import DECLARED, PAGES, table, with_tables
from mis_core.config import EngineConfig
from mis_core.errors import RequestError
from mis_core.tasks.classify.task import CLASSIFY
from mis_core.tasks.classify.token_task import TOKEN_CLASSIFY
from mis_core.tasks.decide.system_one.task import SYSTEM_ONE
from mis_core.tasks.decide.task import DECIDE
from mis_core.tasks.fields.body import Body, fields_of, read_body
from mis_core.tasks.fields.described import schema_of
from mis_core.tasks.limits import Limits
from mis_core.tasks.path.task import Task
from mis_core.tasks.rerank.task import RERANK
from mis_core.tasks.score.task import SCORE
from mis_core.tasks.text.chat import CHAT
from mis_core.tasks.text.completion import COMPLETE
from mis_core.tokenization import Tokenizer
from mis_server.settings import ServerConfig
from mis_server.tokenizers.batch import read_batch
from mis_server.tokenizers.tokens import detokenize, tokenize
from route_bodies import BODIES, SAME, SHOWING
from served_app import served_app
from wider_bodies import HELP, wider

GOOD = BODIES | SHOWING

of_each_route = pytest.mark.parametrize("route", DECLARED)


@pytest.fixture(scope="module")
def tokenizer(checkpoint: Path) -> Tokenizer:
    return Tokenizer.from_pretrained(checkpoint)


def refusal(declared: type[Body], fields: dict[str, Any]) -> RequestError:
    with pytest.raises(RequestError) as caught:
        read_body(declared, fields)
    return caught.value


# What a type cannot say. Ids, or texts, become one array, and a mixture of both is refused as such:
_IDS_OR_TEXTS = {"query", "items", "input", "prompt", "labels", "label_token_ids", "stop_token_ids"}
# Its names are ids, below the size of the model's vocabulary:
_NUMBERS_BY_ID = {"logit_bias"}
# Members depend on each other: an output of a tool names the call before it, and the role of a message says what its
# parts may be. A type for each would be a second reader beside the one that makes a prompt of them.
_MEMBERS = {
    "/v1/decisions": {"input", "questions"},
    "/v1/chat/completions": {"messages"},
    "/v1/systemone": {"state"},  # any JSON but numbers, truth values and null
}


@of_each_route
def test_no_other_fields_have_readers_of_their_own(route: str) -> None:
    own = {name for name, field in fields_of(DECLARED[route]).items() if isinstance(field.info, AnyType)}
    assert own <= _IDS_OR_TEXTS | _NUMBERS_BY_ID | _MEMBERS.get(route, set())


@of_each_route
def test_a_field_that_is_declared_is_read(route: str) -> None:
    assert read_body(wider(route), GOOD[route] | {"wombats": 3}).wombats == 3  # pyrefly: ignore[missing-attribute]
    assert read_body(wider(route), GOOD[route]).wombats is None  # pyrefly: ignore[missing-attribute]


@of_each_route
def test_its_errors_say_what_it_must_be(route: str) -> None:
    for value in (0, 10, "three", 2.5, [1]):
        error = refusal(wider(route), GOOD[route] | {"wombats": value})
        assert (error.code, error.param) == ("invalid_wombats", "wombats")
        assert error.message.startswith("wombats must be a whole number from 1 to 9")
    if not DECLARED[route].__struct_config__.forbid_unknown_fields:
        read_body(wider(route), GOOD[route] | {"wombat": 3})
        return
    error = refusal(wider(route), GOOD[route] | {"wombat": 3})
    assert error.code == "unknown_parameter"
    assert "Did you mean 'wombats'?" in error.message


@of_each_route
def test_documents_have_it(route: str) -> None:
    schema = schema_of(wider(route))["properties"]["wombats"]
    assert schema["description"] == HELP
    assert schema["anyOf"][0] == {"type": "integer", "minimum": 1, "maximum": 9}
    assert f"| `wombats` | a whole number from 1 to 9 |  | {HELP} |\n" in table(wider(route))


@of_each_route
def test_the_fuzz_has_it(route: str) -> None:
    made = bodies(wider(route), GOOD[route])
    few = settings(derandomize=True, database=None, max_examples=2000, phases=[Phase.generate])
    right = [*range(1, 10), None]
    assert find(made, lambda body: body.get("wombats") in right[:-1], settings=few)
    assert find(made, lambda body: "wombats" in body and body["wombats"] not in right, settings=few)


@of_each_route
def test_the_pages_are_what_the_declarations_say(route: str) -> None:
    pages = {path.name: path.read_text("utf-8") for path in PAGES.glob("*.md")}
    (name,) = (name for name, text in pages.items() if f"<!-- fields of {route} -->\n\n| field |" in text)
    assert pages[name] == with_tables(pages[name], DECLARED), "python tests/support/field_tables.py writes it"


def test_the_openapi_document_has_the_declarations() -> None:
    document = served_app(None, ServerConfig(engine=EngineConfig(model="m")), None).openapi()
    for path, operations in document["paths"].items():
        body = operations.get("post", {}).get("requestBody")
        declared = DECLARED.get(SAME.get(path, path))
        if body is not None and declared is not None:
            (content,) = body["content"].values()
            given, made = content["schema"], schema_of(declared)
            assert given["examples"]
            assert given["required"] == made["required"]
            described = (
                {name: each.get("description") for name, each in schema["properties"].items()}
                for schema in (given, made)
            )
            assert next(described) == next(described)


odd = [None, True, 5, -1, 0.5, "", "x", [], ["x"], [[5]], [5], {}, {"x": 1}, {"text": 5}]
# What msgspec's messages repeat must not be taken for what they say.
forged = ["x - at `$[0]", {"x` - at `$.a": 1}, {" - at `$[0].a": 1, "b": 2}, {"include_usage": 5, "\n": 1}]
values = st.sampled_from([*odd, *forged])


@of_each_route
@given(data=st.data())
def test_the_order_of_bytes_does_not_decide_the_reported_fault(
    route: str, tokenizer: Tokenizer, data: st.DataObject
) -> None:
    names = st.sampled_from([*DECLARED[route].__struct_fields__, "nothing", "void"])
    faults = data.draw(st.dictionaries(names, values, min_size=2, max_size=3))
    fields = GOOD[route] | faults
    said = [fault(route, dict(each), tokenizer) for each in (fields.items(), reversed(fields.items()))]
    assert said[0] == said[1]


def fault(route: str, fields: dict[str, Any], tokenizer: Tokenizer) -> tuple[str, str | None] | None:
    try:
        PARSE[route](fields, tokenizer)
    except RequestError as error:
        return error.code, error.param
    return None


LIMITS = Limits(context_length=1000, vocab_size=1 << 20)
WITH_HEAD = replace(LIMITS, head_labels=("no", "yes"))
OF_TOKENS = replace(WITH_HEAD, only_task="token_classify")


def parse(task: Task[Any, Any]) -> Callable[[dict[str, Any], Tokenizer], object]:
    return lambda fields, tokenizer: task.parse(fields, tokenizer, LIMITS, ("m",))


PARSE: dict[str, Callable[[dict[str, Any], Tokenizer], object]] = {
    "/v1/score": parse(SCORE),
    "/v1/rerank": parse(RERANK),
    "/v1/classify": lambda fields, tokenizer: CLASSIFY.parse(fields, tokenizer, WITH_HEAD, ("m",)),
    "/v1/token_classify": lambda fields, tokenizer: TOKEN_CLASSIFY.parse(fields, tokenizer, OF_TOKENS, ("m",)),
    "/v1/completions": parse(COMPLETE),
    "/v1/decisions": parse(DECIDE),
    "/v1/systemone": parse(SYSTEM_ONE),
    "/v1/systemone/batch": lambda fields, tokenizer: read_batch(msgspec.json.encode(fields), 100, tokenizer),
    "/v1/chat/completions": parse(CHAT),
    "/tokenize": lambda fields, tokenizer: tokenize(msgspec.json.encode(fields), ("m",), 100, 100, tokenizer),
    "/detokenize": lambda fields, tokenizer: detokenize(msgspec.json.encode(fields), ("m",), 100, 100, None, tokenizer),
}
