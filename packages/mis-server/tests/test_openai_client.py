"""The official `openai` client understands our replies and errors."""

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import openai
import pytest

from mis_core.errors import EngineUnavailable

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


def test_the_client_comes_back_when_it_was_told_to(
    client: openai.OpenAI, pretended: Any, score_body: Body, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits_s: list[float] = []

    def sleep(seconds: float) -> None:
        waits_s.append(seconds)
        pretended.error = None

    monkeypatch.setattr("openai._base_client.time.sleep", sleep)
    pretended.error = EngineUnavailable("restarting")
    patient = client.with_options(max_retries=1)
    assert patient.post("/score", cast_to=object, body=score_body())
    assert waits_s == [5]
