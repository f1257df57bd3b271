"""The official `openai` client understands our replies and errors. `nox -s clients` runs this with 1.x, 2.x and 3.x."""

import asyncio
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from mis_core.errors import EngineUnavailable, RequestError
from mis_core.process.client import EngineFault
from mis_core.process.quarantine import RequestRefused
from mis_core.tasks.text.bodies import ChatBody, CompletionBody
from mis_testing.server import RunningServer

Body = Callable[..., dict[str, Any]]


@pytest.fixture
def client(connect: Callable[..., httpx.Client], monkeypatch: pytest.MonkeyPatch) -> Iterator[openai.OpenAI]:
    monkeypatch.setenv("NO_PROXY", "*")
    http = connect(api_key="secret")
    with openai.OpenAI(base_url=str(http.base_url.join("/v1")), api_key="secret", max_retries=0) as made:
        yield made


def test_scores_are_a_dict(client: openai.OpenAI, score_body: Body) -> None:
    reply: Any = client.post("/score", cast_to=object, body=score_body())
    assert [len(row) for row in reply["scores"]] == [2, 2]


def test_a_model_of_the_client_reads_the_reply(client: openai.OpenAI, score_body: Body) -> None:
    class Scoring(openai.BaseModel):
        scores: list[list[float]]

    reply = client.post("/score", cast_to=Scoring, body=score_body())
    assert len(reply.scores) == 2
    assert reply._request_id


def test_models_are_listed_and_found(client: openai.OpenAI) -> None:
    (model,) = client.models.list().data
    assert client.models.retrieve(model.id) == model
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("other")
    assert caught.value.code == "model_not_found"


@pytest.mark.parametrize(
    ("changes", "kind", "code", "param"),
    [
        ({"items": []}, openai.BadRequestError, "empty_items", "items"),
        ({"label_token_ids": [5000]}, openai.UnprocessableEntityError, "token_id_exceeds_vocab", "label_token_ids"),
        ({"model": "other"}, openai.NotFoundError, "model_not_found", "model"),
    ],
)
def test_errors_carry_code_param_and_message(
    client: openai.OpenAI, score_body: Body, changes: Any, kind: type[openai.APIStatusError], code: str, param: str
) -> None:
    with pytest.raises(kind) as caught:
        client.post("/score", cast_to=object, body=score_body(**changes))
    assert (caught.value.code, caught.value.param) == (code, param)
    assert caught.value.request_id
    assert caught.value.type


def test_a_wrong_key_is_an_authentication_error(client: openai.OpenAI) -> None:
    with pytest.raises(openai.AuthenticationError) as caught:
        client.with_options(api_key="wrong").models.list()
    assert caught.value.code == "invalid_api_key"


FAILURES = [
    (RequestError("context_length_exceeded", "Item 3 is too long.", "items"), 400, openai.BadRequestError, "items"),
    (RequestError("queue_full", "Later."), 429, openai.RateLimitError, None),
    (EngineFault("a reason for the log"), 500, openai.InternalServerError, None),
    (RequestRefused("again"), 500, openai.InternalServerError, None),
    (EngineUnavailable("restarting"), 503, openai.InternalServerError, None),
    (RequestError("deadline_exceeded", "Too late."), 504, openai.InternalServerError, None),
]


@pytest.mark.parametrize(("error", "status", "kind", "param"), FAILURES, ids=str)
def test_every_status_is_its_exception(
    client: openai.OpenAI,
    pretended: Any,
    score_body: Body,
    error: Exception,
    status: int,
    kind: type[openai.APIStatusError],
    param: str | None,
) -> None:
    pretended.error = error
    with pytest.raises(kind) as caught:
        client.post("/score", cast_to=object, body=score_body())
    code = error.code if isinstance(error, RequestError) else None
    assert caught.value.status_code == status
    assert caught.value.code == (code or {500: "internal_error", 503: "engine_unavailable"}[status])
    assert caught.value.param == param
    assert caught.value.request_id == caught.value.response.headers["x-request-id"]


def test_a_body_that_is_too_large_is_a_status_error(connect: Callable[..., httpx.Client], score_body: Body) -> None:
    http = connect(max_body_bytes=100)
    with openai.OpenAI(base_url=str(http.base_url.join("/v1")), api_key="any", max_retries=0) as client:
        with pytest.raises(openai.APIStatusError) as caught:
            client.post("/score", cast_to=object, body=score_body(items=[[1]] * 100))
        assert (caught.value.status_code, caught.value.code) == (413, "request_too_large")
        with pytest.raises(openai.NotFoundError) as missing:
            client.post("/nowhere", cast_to=object, body={})
        assert missing.value.code == "not_found"


@pytest.mark.parametrize(
    ("error", "wait_s"), [(EngineUnavailable("restarting"), 5), (RequestError("queue_full", "Later."), 1)]
)
def test_the_client_comes_back_when_it_was_told_to(
    client: openai.OpenAI,
    pretended: Any,
    score_body: Body,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    wait_s: float,
) -> None:
    waits_s: list[float] = []

    def sleep(seconds: float) -> None:
        waits_s.append(seconds)
        pretended.error = None

    monkeypatch.setattr("openai._base_client.time.sleep", sleep)
    pretended.error = error
    patient = client.with_options(max_retries=2)
    assert patient.post("/score", cast_to=object, body=score_body())
    assert waits_s == [wait_s]


def test_the_client_does_not_retry_a_refused_request(client: openai.OpenAI, pretended: Any, score_body: Body) -> None:
    pretended.error = RequestRefused("again")
    with pytest.raises(openai.InternalServerError):
        client.with_options(max_retries=2).post("/score", cast_to=object, body=score_body())
    assert len(pretended.requests) == 1


def test_the_asynchronous_client_scores(client: openai.OpenAI, score_body: Body) -> None:
    async def score() -> Any:
        async with openai.AsyncOpenAI(base_url=client.base_url, api_key=client.api_key, max_retries=0) as asynchronous:
            return await asynchronous.post("/score", cast_to=object, body=score_body())

    assert asyncio.run(score())["scores"] == client.post("/score", cast_to=object, body=score_body())["scores"]


CHAT: dict[str, Any] = {
    "model": "some/model",
    "messages": [{"role": "developer", "content": "Yes or no?"}, {"role": "user", "content": "Do cats purr?"}],
    "max_tokens": 1,
}


def test_chats_are_answered_with_log_probabilities(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(
        **CHAT, logprobs=True, top_logprobs=20, temperature=0.5, seed=1, logit_bias={"7": 1}, n=2, stop=["zzz"],
        user="someone", extra_body={"label_token_ids": [7, 8]},
    )  # fmt: skip
    first, second = reply.choices
    assert first.message.role == "assistant"
    assert first.message.content != second.message.content
    assert first.logprobs is not None
    assert first.logprobs.content is not None
    (token,) = first.logprobs.content
    assert bytes(token.bytes or []).decode() == token.token == first.message.content
    assert len(token.top_logprobs) == 20
    assert [label["token_id"] for label in (first.model_extra or {})["labels"]] == [7, 8]
    assert reply.usage is not None
    assert reply.usage.prompt_tokens_details is not None
    assert (reply.usage.completion_tokens, reply.usage.prompt_tokens_details.cached_tokens) == (2, 1)
    assert reply._request_id


def test_streamed_chats_are_the_same_answer(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(**CHAT, logprobs=True, top_logprobs=2)
    stream = client.chat.completions.create(
        **CHAT, logprobs=True, top_logprobs=2, stream=True, stream_options={"include_usage": True}
    )
    *chunks, last = list(stream)
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert [delta.role for delta in deltas] == ["assistant", None, None]
    assert "".join(delta.content or "" for delta in deltas) == whole.choices[0].message.content
    assert chunks[1].choices[0].logprobs is not None
    assert whole.choices[0].logprobs is not None
    assert chunks[1].choices[0].logprobs.content == whole.choices[0].logprobs.content
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None, None, "length"]
    assert (last.choices, last.usage) == ([], whole.usage)


def test_what_a_chat_cannot_have_is_refused_by_name(client: openai.OpenAI) -> None:
    for changes, param in (
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
    ):
        for stream in (False, True):
            with pytest.raises(openai.BadRequestError) as caught:
                client.chat.completions.create(**(CHAT | changes), stream=stream)
            assert (caught.value.code, caught.value.param) == ("unsupported_parameter", param)


def test_the_real_server_answers_chats(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "*")
    with openai.OpenAI(base_url=f"{server.base_url}/v1", api_key="none", max_retries=0) as client:
        chat = CHAT | {
            "model": client.models.list().data[0].id,
            "logprobs": True,
            "top_logprobs": 20,
            "n": 3,
            "seed": 4,
        }
        first, second = (client.chat.completions.create(**chat, extra_body={"label_token_ids": [7, 8]}) for _ in "ab")
        pieces = [piece for chunk in client.chat.completions.create(**chat, stream=True) for piece in chunk.choices]
    assert first.choices == second.choices
    assert second.usage is not None
    assert second.usage.prompt_tokens_details is not None
    assert second.usage.prompt_tokens_details.cached_tokens == second.usage.prompt_tokens - 1
    for choice in first.choices:
        mine = [piece for piece in pieces if piece.index == choice.index]
        assert "".join(piece.delta.content or "" for piece in mine) == choice.message.content
        assert choice.logprobs is not None
        assert [piece.logprobs.content for piece in mine if piece.logprobs] == [choice.logprobs.content]
        assert choice.logprobs.content is not None
        (token,) = choice.logprobs.content
        best = [top.logprob for top in token.top_logprobs]
        assert best == sorted(best, reverse=True)
        assert sum(map(math.exp, best)) <= 1 + 1e-6
        assert token.logprob <= best[0]


def test_the_real_server_writes_and_streams(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "*")
    with openai.OpenAI(base_url=f"{server.base_url}/v1", api_key="none", max_retries=0) as client:
        model = client.models.list().data[0].id
        fields: dict[str, Any] = {"model": model, "max_tokens": 12, "seed": 4, "n": 2, "extra_body": {"top_k": 9}}
        chat = fields | {"messages": CHAT["messages"], "frequency_penalty": 0.3, "logprobs": True, "top_logprobs": 2}
        answer = client.chat.completions.create(**chat)
        *chunks, last = list(
            client.chat.completions.create(**chat, stream=True, stream_options={"include_usage": True})
        )
        text = fields | {"prompt": "Do cats purr?", "logprobs": 2}
        completion = client.completions.create(**text)
        *pieces, end = list(client.completions.create(**text, stream=True, stream_options={"include_usage": True}))
        stopped = client.chat.completions.create(**chat | {"stop": (answer.choices[0].message.content or "")[3:5]})
        with client.chat.completions.create(**chat | {"max_tokens": 150}, stream=True) as left:
            assert next(iter(left)).choices
    for choice in answer.choices:
        told = [each for chunk in chunks for each in chunk.choices if each.index == choice.index]
        assert "".join(each.delta.content or "" for each in told) == choice.message.content
        assert told[-1].finish_reason == choice.finish_reason
        assert choice.logprobs is not None
        assert choice.logprobs.content is not None
        tokens = [token for each in told if each.logprobs for token in each.logprobs.content or []]
        assert tokens == choice.logprobs.content
        assert all(token.logprob <= token.top_logprobs[0].logprob for token in tokens)
    assert answer.usage is not None
    assert last.usage is not None
    assert last.usage.completion_tokens == answer.usage.completion_tokens > 2
    assert stopped.choices[0].finish_reason == "stop"
    assert (answer.choices[0].message.content or "").startswith(stopped.choices[0].message.content or "")
    for written in completion.choices:
        mine = [each for piece in pieces for each in piece.choices if each.index == written.index]
        assert "".join(each.text for each in mine) == written.text
        assert mine[-1].finish_reason == written.finish_reason
    assert end.usage is not None
    assert completion.usage is not None
    assert end.usage.completion_tokens == completion.usage.completion_tokens


def test_a_model_is_as_old_as_its_checkpoint(
    server: RunningServer, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "*")
    with openai.OpenAI(base_url=f"{server.base_url}/v1", api_key="none", max_retries=0) as client:
        (model,) = client.models.list().data
    assert model.created == int((checkpoint / "config.json").stat().st_mtime)


def test_no_field_of_the_client_is_unknown() -> None:
    from openai.types.chat import completion_create_params as params

    theirs = (
        params.CompletionCreateParamsNonStreaming.__annotations__ | params.CompletionCreateParamsBase.__annotations__
    )
    assert {"messages", "logit_bias", "stream"} <= set(theirs)
    assert set(theirs) <= set(ChatBody.__struct_fields__)


COMPLETION: dict[str, Any] = {"model": "some/model", "prompt": "Do cats purr?", "max_tokens": 1}


def test_completions_have_log_probabilities_of_the_prompt(client: openai.OpenAI) -> None:
    reply = client.completions.create(
        **(COMPLETION | {"prompt": ["Do cats purr?", "Rain."]}), echo=True, logprobs=2, temperature=0, seed=1, n=1,
        logit_bias={"7": 1}, best_of=1, stop=["zzz"], presence_penalty=0.5, user="someone",
    )  # fmt: skip
    first, second = reply.choices
    assert (first.index, second.index) == (0, 1)
    for choice, prompt in ((first, "Do cats purr?"), (second, "Rain.")):
        told = choice.logprobs
        assert told is not None
        assert told.tokens is not None
        assert told.token_logprobs is not None
        assert told.top_logprobs is not None
        assert "".join(told.tokens) == choice.text
        assert choice.text.startswith(prompt)
        assert told.token_logprobs[0] is told.top_logprobs[0] is None
        assert told.top_logprobs[1][told.tokens[1]] == told.token_logprobs[1]
        assert len(told.text_offset or []) == len(told.tokens)
    assert reply.usage is not None
    assert reply.usage.completion_tokens == 2
    assert reply._request_id


def test_completions_take_ids_and_stream(client: openai.OpenAI) -> None:
    whole = client.completions.create(**(COMPLETION | {"prompt": [[5, 6], [7]]}), logprobs=1)
    stream = client.completions.create(
        **(COMPLETION | {"prompt": [[5, 6], [7]]}), logprobs=1, stream=True, stream_options={"include_usage": True}
    )
    *chunks, last = list(stream)
    assert [chunk.choices for chunk in chunks] == [[choice] for choice in whole.choices]
    assert (last.choices, last.usage) == ([], whole.usage)


def test_what_a_completion_cannot_have_is_refused_by_name(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(**COMPLETION, suffix="a")
    assert (caught.value.code, caught.value.param) == ("unsupported_parameter", "suffix")


def test_no_field_of_the_clients_completions_is_unknown() -> None:
    from openai.types import completion_create_params as params

    assert set(params.CompletionCreateParamsBase.__annotations__) <= set(CompletionBody.__struct_fields__)
