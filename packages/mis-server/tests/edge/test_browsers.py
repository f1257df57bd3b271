"""A server without a key answers people and programs, not pages of other sites."""

from collections.abc import Callable
from typing import Any

import httpx
import pytest

Body = Callable[..., dict[str, Any]]
Connect = Callable[..., httpx.Client]


@pytest.mark.parametrize("path", ["/v1/score", "/tokenize", "/flush_cache", "/start_profile"])
@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:1"},  # another port is another origin
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
def test_pages_of_other_sites_change_nothing(
    http: httpx.Client, pretended: Any, path: str, headers: dict[str, str]
) -> None:
    reply = http.post(path, headers=headers)
    assert (reply.status_code, reply.json()["error"]["code"]) == (403, "foreign_origin")
    assert pretended.operations == pretended.requests == []


def test_its_own_pages_and_programs_are_answered(http: httpx.Client, score_body: Body) -> None:
    own = str(http.base_url).rstrip("/")
    for headers in ({}, {"origin": own, "sec-fetch-site": "same-origin"}, {"sec-fetch-site": "none"}):
        assert http.post("/v1/score", json=score_body(), headers=headers).status_code == 200


def test_an_allowed_origin_may_ask(connect: Connect, score_body: Body) -> None:
    for allowed in ("https://a.example, https://b.example", "*"):
        http = connect(cors_allowed_origins=allowed)
        headers = {"origin": "https://b.example", "sec-fetch-site": "cross-site"}
        assert http.post("/v1/score", json=score_body(), headers=headers).status_code == 200


def test_a_key_is_what_counts_where_there_is_one(connect: Connect, score_body: Body) -> None:
    headers = {"origin": "https://evil.example", "host": "evil.example", "authorization": "Bearer secret"}
    assert connect(api_key="secret").post("/v1/score", json=score_body(), headers=headers).status_code == 200


@pytest.mark.parametrize(("host", "status"), [
    ("localhost:30000", 200), ("127.0.0.1", 200), ("127.8.8.8:1", 200), ("[::1]:30000", 200),
    ("evil.example", 403), ("localhost.evil.example", 403), ("169.254.169.254", 403), ("[::1", 200), ("a b", 403),
])  # fmt: skip
def test_a_name_that_leads_here_is_not_enough(http: httpx.Client, host: str, status: int) -> None:
    assert http.get("/v1/models", headers={"host": host}).status_code == status


def test_an_operator_may_allow_names(connect: Connect) -> None:
    http = connect(allowed_hosts="scores.example, other.example")
    assert http.get("/v1/models", headers={"host": "scores.example"}).status_code == 200
    assert http.get("/v1/models", headers={"host": "third.example"}).status_code == 403
    assert http.get("/v1/models", headers={"host": "localhost"}).status_code == 200


def test_who_listens_for_others_is_called_by_any_name(connect: Connect) -> None:
    assert connect(host="0.0.0.0").get("/v1/models", headers={"host": "scores.example"}).status_code == 200
