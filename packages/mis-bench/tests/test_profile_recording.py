"""Recording of a server's trace, against replies of its kind."""

from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from mis_bench.profile.recording import recording_server
from mis_bench.profile.records import ProfileError

STARTED = httpx.Response(200, json={"status": "started", "folder": "2026-11-21-09-30-00"})
BUSY = httpx.Response(400, json={"error": {"message": "A profile is under way.", "code": "profile_under_way"}})


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[tuple[str, str | None]]]:
    """`asked(reply)`: every request gets that reply; returns the list of paths and keys that fills up."""

    def answer(reply: httpx.Response | Exception) -> list[tuple[str, str | None]]:
        requests: list[tuple[str, str | None]] = []

        def post(url: str, *, headers: dict[str, str], timeout: float) -> httpx.Response:
            requests.append((httpx.URL(url).path, headers.get("Authorization")))
            if isinstance(reply, Exception):
                raise reply
            return reply

        monkeypatch.setattr(httpx, "post", post)
        return requests

    return answer


@pytest.fixture
def there(tmp_path: Path) -> Path:
    """The server's `--profile-dir`, with the trace."""
    folder = tmp_path / "profiles" / "2026-11-21-09-30-00"
    folder.mkdir(parents=True)
    (folder / "x.xplane.pb").touch()
    return folder.parent


def test_a_trace_is_recorded_with_the_key_and_copied(there: Path, tmp_path: Path, asked) -> None:
    requests = asked(STARTED)
    with recording_server(tmp_path / "here", "http://server/", there, "secret"):
        pass
    assert requests == [("/start_profile", "Bearer secret"), ("/stop_profile", "Bearer secret")]
    assert (tmp_path / "here" / "x.xplane.pb").exists()


def test_a_profile_is_stopped_when_a_request_fails(there: Path, tmp_path: Path, asked) -> None:
    requests = asked(STARTED)
    with pytest.raises(ZeroDivisionError), recording_server(tmp_path / "here", "http://server", there, None):
        raise ZeroDivisionError
    assert requests == [("/start_profile", None), ("/stop_profile", None)]


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (BUSY, "refuses /start_profile: .*A profile is under way"),
        (httpx.Response(401, json={}), "admin_key=KEY"),
        (httpx.Response(502, text="<html>"), "502 <html>"),
        (httpx.ConnectError("refused"), "does not answer"),
    ],
)
def test_refusals_are_one_clear_message(tmp_path: Path, asked, reply: httpx.Response | Exception, message: str) -> None:
    asked(reply)
    with (
        pytest.raises(ProfileError, match=message),
        recording_server(tmp_path / "here", "http://server", tmp_path, "secret"),
    ):
        pass
