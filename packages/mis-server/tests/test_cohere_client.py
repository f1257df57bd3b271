"""Cohere's official client, unchanged, against a real server. `nox -s clients` runs this."""

import asyncio

import pytest

from mis_testing.server import RunningServer

cohere = pytest.importorskip("cohere", reason="needs the cohere client, which nox -s clients installs")

DOCUMENTS = ["Paris is the capital of France.", "It rains.", "long " * 60]


@pytest.fixture(autouse=True)
def direct(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "*")


@pytest.fixture
def model(server: RunningServer) -> str:
    import httpx

    return httpx.get(f"{server.base_url}/v1/models", trust_env=False).json()["data"][0]["id"]


def test_rerank_of_the_second_version(server: RunningServer, model: str) -> None:
    with cohere.ClientV2("any", base_url=server.base_url) as client:
        reply = client.rerank(
            model=model, query="capital of France?", documents=DOCUMENTS, top_n=2, max_tokens_per_doc=9, priority=1
        )
        assert len(reply.results) == 2
        assert reply.results[0].relevance_score >= reply.results[1].relevance_score
        assert reply.id.startswith("rerank-")
        assert reply.meta.api_version.version == "2"
        assert reply.meta.billed_units.search_units == 1
        assert reply.meta.tokens.input_tokens > 60
        whole = client.rerank(model=model, query="capital of France?", documents=DOCUMENTS[:2])
        assert {each.index for each in whole.results} == {0, 1}


def test_rerank_of_the_first_version_returns_documents(server: RunningServer, model: str) -> None:
    with cohere.Client("any", base_url=server.base_url) as client:
        documents = [DOCUMENTS[0], {"text": DOCUMENTS[1]}]
        reply = client.rerank(
            model=model, query="France?", documents=documents, return_documents=True, max_chunks_per_doc=3
        )
        assert {each.index: each.document.text for each in reply.results} == dict(enumerate(DOCUMENTS[:2]))


def test_the_asynchronous_client(server: RunningServer, model: str) -> None:
    async def rerank() -> list[int]:
        async with cohere.AsyncClientV2("any", base_url=server.base_url) as client:
            return [each.index for each in (await client.rerank(model=model, query="a", documents=DOCUMENTS)).results]

    assert sorted(asyncio.run(rerank())) == [0, 1, 2]


def test_errors_carry_the_status_and_the_envelope(server: RunningServer, model: str) -> None:
    with cohere.ClientV2("any", base_url=server.base_url) as client:
        with pytest.raises(cohere.errors.BadRequestError) as caught:
            client.rerank(model=model, query="", documents=DOCUMENTS)
        assert caught.value.body["error"]["code"] == "empty_query"
        with pytest.raises(cohere.errors.NotFoundError):
            client.rerank(model="rerank-v4", query="a", documents=DOCUMENTS)
