"""LiteLLM and LangChain with a real server, unchanged: chats, texts and reranking.

`nox -s integrations` runs this every night.
"""

from typing import Any

import httpx
import litellm
import pytest
from langchain_cohere import CohereRerank
from langchain_core.documents import Document
from langchain_openai import ChatOpenAI

from mis_testing.server import RunningServer

MESSAGES = [{"role": "system", "content": "Answer yes or no."}, {"role": "user", "content": "Do cats purr?"}]

QUERY = "Do cats purr?"
DOCUMENTS = ["Paris is the capital of France.", "Cats purr when they are content.", "It rains.", "Dogs bark. " * 9]


@pytest.fixture(autouse=True)
def _direct(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "*")


@pytest.fixture
def best(server: RunningServer) -> list[tuple[str, float]]:
    """The five most probable answers and their log-probabilities, without a client."""
    reply = httpx.post(f"{server.base_url}/v1/chat/completions", json=asked(), trust_env=False, timeout=120).json()
    return pairs(reply["choices"][0]["logprobs"])


@pytest.fixture
def model(server: RunningServer) -> str:
    return httpx.get(f"{server.base_url}/v1/models", trust_env=False).json()["data"][0]["id"]


@pytest.fixture
def ranked(server: RunningServer) -> list[tuple[int, float]]:
    """The three best documents, best first, and their scores, without a client."""
    body = {"query": QUERY, "documents": DOCUMENTS, "top_n": 3}
    reply = httpx.post(f"{server.base_url}/v1/rerank", json=body, trust_env=False, timeout=120).json()
    return [(each["index"], each["relevance_score"]) for each in reply["results"]]


def asked() -> dict[str, Any]:
    return {"messages": MESSAGES, "max_tokens": 1, "logprobs": True, "top_logprobs": 5, "temperature": 0}


def pairs(logprobs: dict[str, Any]) -> list[tuple[str, float]]:
    (token,) = logprobs["content"]
    return [(top["token"], top["logprob"]) for top in token["top_logprobs"]]


def test_litellm_completes_chats(server: RunningServer, model: str, best: list[tuple[str, float]]) -> None:
    at = {"model": f"openai/{model}", "api_base": f"{server.base_url}/v1", "api_key": "none"}
    reply: Any = litellm.completion(**at, **asked())
    (choice,) = reply.choices
    assert choice.message.content == best[0][0]
    assert choice.finish_reason == "length"
    assert pairs(choice.logprobs.model_dump()) == best
    assert (reply.usage.completion_tokens, reply.usage.total_tokens) == (1, reply.usage.prompt_tokens + 1)
    chunks: Any = litellm.completion(**at, **asked(), stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == best[0][0]


def test_litellm_completes_texts(server: RunningServer, model: str) -> None:
    asked = {"prompt": "Do cats purr?", "max_tokens": 1, "temperature": 0, "logprobs": 3}
    url = f"{server.base_url}/v1/completions"
    (plain,) = httpx.post(url, json=asked, trust_env=False, timeout=120).json()["choices"]
    at = {"model": f"text-completion-openai/{model}", "api_base": f"{server.base_url}/v1", "api_key": "none"}
    reply: Any = litellm.text_completion(**at, **asked)
    (choice,) = reply.choices
    assert choice.text == plain["text"]
    assert dict(choice.logprobs)["token_logprobs"] == plain["logprobs"]["token_logprobs"]
    assert reply.usage.completion_tokens == 1


def test_litellm_reports_what_is_refused(server: RunningServer, model: str) -> None:
    at = {"model": f"openai/{model}", "api_base": f"{server.base_url}/v1", "api_key": "none"}
    with pytest.raises(litellm.BadRequestError, match="max_tokens"):
        litellm.completion(**at, messages=MESSAGES, max_tokens=0)


def test_litellm_streams_longer_answers(server: RunningServer, model: str) -> None:
    at = {"model": f"openai/{model}", "api_base": f"{server.base_url}/v1", "api_key": "none"}
    fields: dict[str, Any] = {"messages": MESSAGES, "max_tokens": 12, "seed": 3}
    reply: Any = litellm.completion(**at, **fields)
    chunks: Any = list(litellm.completion(**at, **fields, stream=True, stream_options={"include_usage": True}))
    told = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert told == reply.choices[0].message.content
    assert reply.usage.completion_tokens > 1


@pytest.mark.parametrize("returned", [None, False, True])
@pytest.mark.parametrize(
    ("provider", "path"),
    [("cohere", ""), ("jina_ai", ""), ("litellm_proxy", ""), ("hosted_vllm", ""), ("hosted_vllm", "/v1")],
)
def test_litellm_reranks(
    server: RunningServer,
    model: str,
    ranked: list[tuple[int, float]],
    provider: str,
    path: str,
    returned: bool | None,
) -> None:
    reply: Any = litellm.rerank(
        model=f"{provider}/{model}", query=QUERY, documents=list[str | dict[str, Any]](DOCUMENTS), top_n=3,
        api_base=server.base_url + path, api_key="none", return_documents=returned,
    )  # fmt: skip
    documents = [each["document"]["text"] for each in reply.results if "document" in each]
    assert documents == ([DOCUMENTS[index] for index, _ in ranked] if returned else [])
    assert [(each["index"], each["relevance_score"]) for each in reply.results] == ranked
    assert len(ranked) == 3
    assert reply.id.startswith("rerank-")


def test_litellm_reports_a_rerank_that_is_refused(server: RunningServer, model: str) -> None:
    at = {"model": f"cohere/{model}", "api_base": server.base_url, "api_key": "none"}
    with pytest.raises(litellm.BadRequestError, match="query must not be empty"):
        litellm.rerank(**at, query="", documents=["a"])


def test_langchain_reranks(server: RunningServer, model: str, ranked: list[tuple[int, float]]) -> None:
    reranker = CohereRerank(base_url=server.base_url, cohere_api_key="none", model=model, top_n=3)
    documents = [Document(text, metadata={"place": place}) for place, text in enumerate(DOCUMENTS)]
    best = reranker.compress_documents(documents, QUERY)
    assert [(each.metadata["place"], each.metadata["relevance_score"]) for each in best] == ranked
    assert [each.page_content for each in best] == [DOCUMENTS[index] for index, _ in ranked]


def test_langchain_invokes_and_streams(server: RunningServer, model: str, best: list[tuple[str, float]]) -> None:
    chat = ChatOpenAI(
        model=model, base_url=f"{server.base_url}/v1", api_key="none", max_tokens=1, temperature=0, logprobs=True,
        top_logprobs=5, max_retries=0,
    )  # fmt: skip
    answer = chat.invoke([("system", MESSAGES[0]["content"]), ("human", MESSAGES[1]["content"])])
    assert answer.content == best[0][0]
    assert pairs(answer.response_metadata["logprobs"]) == best
    assert answer.usage_metadata is not None
    assert answer.usage_metadata["output_tokens"] == 1
    streamed = chat.stream([("system", MESSAGES[0]["content"]), ("human", MESSAGES[1]["content"])])
    assert "".join(str(piece.content) for piece in streamed) == best[0][0]


def test_langchain_streams_longer_answers(server: RunningServer, model: str) -> None:
    chat = ChatOpenAI(
        model=model, base_url=f"{server.base_url}/v1", api_key="none", max_tokens=12, seed=3, max_retries=0,
        stream_usage=True,
    )  # fmt: skip
    answer = chat.invoke("Do cats purr?")
    pieces = list(chat.stream("Do cats purr?"))
    assert "".join(str(piece.content) for piece in pieces) == answer.content
    assert len([piece for piece in pieces if piece.content]) > 1
    assert answer.usage_metadata is not None
    assert answer.usage_metadata["output_tokens"] > 1


def test_langchain_asks_for_labels(server: RunningServer, model: str) -> None:
    chat = ChatOpenAI(
        model=model, base_url=f"{server.base_url}/v1", api_key="none", max_tokens=1, max_retries=0,
        extra_body={"label_token_ids": [7, 8]},
    )  # fmt: skip
    assert chat.invoke("Do cats purr?").usage_metadata is not None
