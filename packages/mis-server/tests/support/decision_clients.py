"""Clients of decisions as they are published: each in an environment of its own, which has nothing of ours.

    python decision_clients.py NAME URL

asks the server at URL; it fails if a client does not get what it needs. `test_decision_clients.py` runs it.
"""

import sys
from collections.abc import Callable
from typing import Any

TICKET = "I was charged twice for my March invoice, and the refund I was promised has not arrived. " * 20
TEAMS = {"billing": "invoices, refunds", "technical": None}
LEVELS = ["calm", "frustrated", "furious"]
DOCUMENTS = ["Mars is known as the Red Planet.", "Venus has a thick atmosphere.", "Rain falls."]


def typesafe_sdk(url: str) -> None:
    """TypeSafe's own, which compresses bodies of a kilobyte."""
    from typesafe_sdk import Choice, Noul, Score, TypeSafeClient
    from typesafe_sdk import TypeSafeUnprocessableEntityError as Unprocessable

    with TypeSafeClient(api_key="any", base_url=url, timeout=240, compression="zstd") as client:
        questions = {
            "refund": Noul(instructions="Is money asked back?"),
            "team": Choice(instructions="Who?", criteria=TEAMS),
            "anger": Score(instructions="How angry?", criteria=LEVELS),
        }
        answered = client.system_one(state={"ticket": TICKET}, questions=questions)
        assert 0 <= answered.nouls["refund"].noul <= 1
        assert answered.choices["team"].choice in TEAMS
        assert 0 <= answered.scores["anger"].score <= 2
        assert [each.name for each in client.models.list().models][-1] == "jev-latest"
        refused = None
        try:
            client.system_one(state="", questions={"q": Choice(instructions="Who?", criteria={"alone": None})})
        except Unprocessable as error:
            refused = error
        assert "2 to 255" in str(refused)
        assert refused is not None
        assert refused.request_id


def langchain_typesafe(url: str) -> None:
    from langchain_typesafe import Choice, Noul, Score, TypeSafeClassifier

    classifier = TypeSafeClassifier(api_key="any", base_url=url)
    asked = {
        "state": TICKET,
        "questions": {
            "team": Choice(instructions="Who?", criteria=TEAMS),
            "urgent": Noul(instructions="Is it urgent?"),
            "anger": Score(instructions="How angry?", criteria=LEVELS),
        },
    }
    found = classifier.invoke(asked)
    assert found.choices["team"].choice in TEAMS
    assert 0 <= found.nouls["urgent"].noul <= 1
    assert 0 <= found.scores["anger"].score <= 2


def pydecide(url: str) -> None:
    from decide import Choice, Client, Noul, Score
    from decide.backends.openai_decisions import OpenAIDecisionsBackend
    from decide.backends.openrouter import OpenRouterBackend
    from decide.backends.typesafe import TypeSafeBackend

    backends: list[Any] = [
        TypeSafeBackend("any", base_url=url, timeout=240),
        OpenAIDecisionsBackend("any", base_url=f"{url}/v1", timeout=240),
        OpenRouterBackend("any", base_url=f"{url}/api", model="jev-latest", timeout=240),
    ]
    for backend in backends:
        found = Client(backends=[backend]).decide(
            state={"ticket": TICKET},
            questions={
                "team": Choice("Who?", {"billing": "invoices", "technical": "bugs"}),
                "anger": Score("How angry?", LEVELS),
                "refund": Noul("Is money asked back?"),
            },
        )
        assert found.choices["team"].choice in TEAMS
        assert 0 <= found.scores["anger"].score <= 2
        assert 0 <= found.nouls["refund"].noul <= 1


def decisions_reranker(url: str) -> None:
    from decisions_reranker import DecisionsReranker, Document
    from openai import OpenAI

    reranker = DecisionsReranker(client=OpenAI(base_url=f"{url}/v1", api_key="any"))
    documents = [Document(id=str(number), text=text) for number, text in enumerate(DOCUMENTS)]
    assert {each.id for each in reranker.rerank("Which planet is red?", documents)} == {"0", "1", "2"}
    assert len(reranker.filter("Which planet is red?", documents, threshold=0)) <= 3


def hev_rerank(url: str) -> None:
    from hev_rerank import rerank
    from typesafe_sdk import TypeSafeClient

    with TypeSafeClient(api_key="any", base_url=url, timeout=240) as client:
        hits = rerank("Which planet is red?", [{"title": "t", "text": text} for text in DOCUMENTS], client=client)
    assert sorted(each.index for each in hits) == [0, 1, 2]


def jev_reranker(url: str) -> None:
    from jev_reranker import JevReranker

    reranker = JevReranker(api_key="any", endpoint=f"{url}/v1/systemone", dotenv_path=None)
    found = reranker.rerank("Which planet is red?", DOCUMENTS, top_k=2)
    assert len(found["results"]) == 2


def openai(url: str) -> None:
    from openai import OpenAI

    with OpenAI(base_url=f"{url}/v1", api_key="any") as client:
        question: Any = {"type": "predicate", "instructions": "It is about money."}
        decision = client.decisions.create(model="gpt-6-luna", input=TICKET, questions=[question])
        assert 0 <= decision.answers[0].probability <= 1
        assert client.models.list().data[0].id


CLIENTS: dict[str, Callable[[str], None]] = {
    "typesafe-sdk": typesafe_sdk,
    "langchain-typesafe": langchain_typesafe,
    "pydecide": pydecide,
    "decisions-reranker": decisions_reranker,
    "hev-rerank": hev_rerank,
    "jev-reranker": jev_reranker,
    "openai": openai,
}
"""By the names of their packages."""

if __name__ == "__main__":
    CLIENTS[sys.argv[1]](sys.argv[2])
