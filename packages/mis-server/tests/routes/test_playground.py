"""`GET /playground`: the page and its files; what they do is tested in a browser, `nox -s tests_browser`."""

import re
from collections.abc import Callable
from urllib.parse import urljoin

import httpx
import pytest

from mis_server.playground import read_files

Connect = Callable[..., httpx.Client]

FILES = read_files()


def directives_of(reply: httpx.Response) -> dict[str, str]:
    policy = reply.headers["content-security-policy"]
    return dict(directive.strip().split(" ", 1) for directive in policy.split(";"))


def test_the_page_and_all_that_it_loads_are_served(http: httpx.Client) -> None:
    page = http.get("/playground")
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    wanted = {"/playground"}
    for _ in FILES:  # imports of imports, too
        texts = [(path, http.get(path).text) for path in wanted]
        for path, text in texts:
            if path == "/playground":
                wanted |= {f"/{name}" for name in re.findall(r'(?:src|href)="([^"]+)"', text)}
            else:
                wanted |= {f"/playground/{name}" for name in re.findall(r'from "\./([^"]+)"', text)}
    assert wanted == set(FILES)
    types = {path.rpartition(".")[2]: http.get(path).headers["content-type"] for path in wanted - {"/playground"}}
    assert types == {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8", "svg": "image/svg+xml"}


@pytest.mark.parametrize("path", ["/playground", "/playground/main.js", "/playground/page.css"])
def test_browsers_may_run_and_contact_nothing_else(http: httpx.Client, path: str) -> None:
    reply = http.get(path)
    directives = directives_of(reply)
    assert directives["default-src"] == "'none'"
    for name in ("script-src", "style-src", "img-src", "connect-src"):
        assert directives[name] == "'self'"
    for name in ("base-uri", "form-action", "frame-ancestors", "trusted-types"):
        assert directives[name] == "'none'"
    assert directives["require-trusted-types-for"] == "'script'"
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert reply.headers["referrer-policy"] == "no-referrer"


def test_a_browser_that_has_a_file_is_told_that_it_is_the_same(http: httpx.Client) -> None:
    first = http.get("/playground/main.js")
    assert first.headers["cache-control"] == "no-cache"
    again = http.get("/playground/main.js", headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", first.headers["etag"])
    assert http.get("/playground/main.js", headers={"if-none-match": '"other"'}).content == first.content


def test_a_head_request_gets_the_headers_alone(http: httpx.Client) -> None:
    got, head = http.get("/playground"), http.head("/playground")
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == got.headers["content-length"]


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_with_a_slash_it_leads_to_the_page_also_behind_a_prefix(http: httpx.Client, method: str) -> None:
    reply = http.request(method, "/playground/")
    assert reply.status_code == 307
    base = "https://scores.example/mis/playground/"
    assert urljoin(base, reply.headers["location"]) == "https://scores.example/mis/playground"
    assert http.get("/playground/", follow_redirects=True).content == FILES["/playground"].content


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_it_is_on_for_loopback_addresses(connect: Connect, host: str) -> None:
    assert connect(host=host).get("/playground").status_code == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.1", "scores.example"])
def test_it_is_off_elsewhere_unless_it_is_asked_for(connect: Connect, host: str) -> None:
    off = connect(host=host)
    for path in (*FILES, "/playground/"):
        assert (off.get(path).status_code, off.get(path).json()["error"]["code"]) == (404, "not_found")
    assert connect(host=host, playground=True).get("/playground").status_code == 200


def test_the_page_needs_no_key_but_what_it_asks_for_does(connect: Connect) -> None:
    http = connect(api_key="secret")
    for path in (*FILES, "/playground/"):
        assert http.get(path, follow_redirects=True).status_code == 200
    for path in ("/playground//", "/playground/nothing.js", "/playground/../v1/models", "/v1/models"):
        assert http.get(path).status_code == 401
    assert connect(api_key="secret", host="0.0.0.0").get("/playground").status_code == 401


def test_a_foreign_host_name_does_not_get_the_page(http: httpx.Client) -> None:
    assert http.get("/playground", headers={"host": "attacker.example"}).status_code == 403


def test_it_is_no_part_of_the_api(http: httpx.Client) -> None:
    document = http.get("/openapi.json").json()
    assert "/v1/score" in document["paths"]
    assert not [path for path in document["paths"] if "playground" in path]


def test_no_file_names_another_host_or_writes_markup() -> None:
    text = "".join(file.content.decode() for path, file in FILES.items() if not path.endswith(".svg"))
    assert re.findall(r"(?:https?:)?//[a-z]+\.[a-z]", text) == []
    assert re.findall(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|style=", text) == []
    assert "textContent" in text
