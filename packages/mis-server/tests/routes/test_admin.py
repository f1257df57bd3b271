"""Routes for operators only, and the key that guards them."""

import re
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from mis_core.errors import EngineUnavailable, RequestError
from mis_server.edge.middleware import ADMIN_PATHS

Connect = Callable[..., httpx.Client]


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def test_the_cache_is_flushed(http: httpx.Client, pretended: Any) -> None:
    assert http.post("/flush_cache").json() == {"freed_pages": 4}
    assert pretended.operations == ["flush_cache"]


def test_a_profile_is_written_to_a_new_folder_of_the_operators(connect: Connect, pretended: Any) -> None:
    http = connect(profile_dir="here")
    folder = http.post("/start_profile").json()["folder"]
    assert re.fullmatch(r"[0-9-]+", folder)
    assert http.post("/stop_profile").json()["status"] == "stopped"
    assert pretended.operations == [f"start_profile here/{folder}", "stop_profile"]


@pytest.mark.parametrize("code", ["profile_under_way", "no_profile"])
def test_what_the_engine_refuses_is_told(http: httpx.Client, pretended: Any, code: str) -> None:
    pretended.error = RequestError(code, "Why.")
    for path in ("/start_profile", "/stop_profile"):
        reply = http.post(path)
        assert (reply.status_code, reply.json()["error"]["code"]) == (400, code)


def test_without_an_engine_they_are_503(http: httpx.Client, pretended: Any) -> None:
    pretended.error = EngineUnavailable("restarting")
    for path in ADMIN_PATHS:
        assert http.post(path).status_code == 503


def test_the_admin_key_guards_them_and_opens_everything(connect: Connect) -> None:
    http = connect(api_key="user", admin_api_key="admin")
    for path in ADMIN_PATHS:
        assert http.post(path).status_code == 401
        assert http.post(path, headers=bearer("user")).status_code == 401
        assert http.post(path, headers=bearer("admin")).status_code == 200
    for key in ("user", "admin"):
        assert http.get("/v1/models", headers=bearer(key)).status_code == 200


def test_an_admin_key_alone_guards_only_them(connect: Connect) -> None:
    http = connect(admin_api_key="admin")
    assert http.get("/v1/models").status_code == 200
    for path in ADMIN_PATHS:
        assert http.post(path).status_code == 401


def test_without_an_admin_key_the_api_key_opens_them(connect: Connect) -> None:
    http = connect(api_key="user")
    for path in ADMIN_PATHS:
        assert http.post(path).status_code == 401
        assert http.post(path, headers=bearer("user")).status_code == 200
