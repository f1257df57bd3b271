"""What options change in a running server: TLS, CORS, logs; and the file that options may come from."""

import json
import logging
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme
from click.testing import CliRunner, Result

from mis_core.config import EngineConfig
from mis_core.errors import ConfigError
from mis_server import logs
from mis_server.cli import main
from mis_server.settings import ServerConfig

Connect = Callable[..., httpx.Client]


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def certificate(authority: trustme.CA, tmp_path: Path) -> dict[str, str]:
    issued = authority.issue_cert("127.0.0.1")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    issued.private_key_pem.write_to_path(tmp_path / "key.pem")
    return {"ssl_certfile": str(tmp_path / "cert.pem"), "ssl_keyfile": str(tmp_path / "key.pem")}


def test_https_with_the_files_of_the_flags(
    connect: Connect, authority: trustme.CA, certificate: dict[str, str], score_body: Any
) -> None:
    plain = connect(**certificate)
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    url = str(plain.base_url).replace("http://", "https://")
    with httpx.Client(base_url=url, verify=trusting, trust_env=False) as http:
        assert http.post("/v1/score", json=score_body()).status_code == 200
    with pytest.raises(httpx.TransportError):
        plain.get("/health")


def test_clients_must_show_a_certificate_where_authorities_are_named(
    connect: Connect, authority: trustme.CA, certificate: dict[str, str], tmp_path: Path
) -> None:
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    url = str(connect(**certificate, ssl_ca_certs=str(tmp_path / "ca.pem")).base_url).replace("http://", "https://")
    stranger, known = ssl.create_default_context(), ssl.create_default_context()
    for context in (stranger, known):
        authority.configure_trust(context)
    authority.issue_cert("client@example.org").configure_cert(known)
    with httpx.Client(base_url=url, verify=stranger, trust_env=False) as http, pytest.raises(httpx.TransportError):
        http.get("/health")
    with httpx.Client(base_url=url, verify=known, trust_env=False) as http:
        assert http.get("/health").status_code == 200


@pytest.mark.parametrize("only", ["ssl_certfile", "ssl_keyfile"])
def test_half_of_a_certificate_is_refused(only: str) -> None:
    done = run("serve", "m", f"--{only.replace('_', '-')}", "file.pem")
    assert done.exit_code == 1
    assert "go together" in done.stderr


ORIGIN = {"origin": "https://app.example"}


def test_browsers_of_other_origins_are_not_let_in_by_default(http: httpx.Client) -> None:
    asked = http.options("/v1/score", headers=ORIGIN | {"access-control-request-method": "POST"})
    assert "access-control-allow-origin" not in asked.headers
    assert "access-control-allow-origin" not in http.get("/health", headers=ORIGIN).headers


def test_origins_that_are_named_are_let_in_and_no_others(connect: Connect, score_body: Any) -> None:
    http = connect(cors_allowed_origins="https://app.example, https://b.example", api_key="secret")
    wanted = {"access-control-request-method": "POST", "access-control-request-headers": "authorization"}
    asked = http.options("/v1/score", headers=ORIGIN | wanted)
    assert asked.status_code == 200
    assert asked.headers["access-control-allow-origin"] == ORIGIN["origin"]
    reply = http.post("/v1/score", json=score_body(), headers=ORIGIN | {"authorization": "Bearer secret"})
    assert (reply.status_code, reply.headers["access-control-allow-origin"]) == (200, ORIGIN["origin"])
    assert http.post("/v1/score", json=score_body(), headers=ORIGIN).status_code == 401
    assert "x-request-id" in reply.headers["access-control-expose-headers"]
    other = http.get("/health", headers={"origin": "https://evil.example"})
    assert "access-control-allow-origin" not in other.headers
    refused = http.options("/v1/score", headers={"origin": "https://evil.example"} | wanted)
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "foreign_origin")


@pytest.fixture
def restored_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level


def logged(capsys: pytest.CaptureFixture[str], part: str) -> str:
    """Wait for what is logged soon, and longer than that; return the only line with a part."""
    time.sleep(1)
    (line,) = [line for line in capsys.readouterr().err.splitlines() if part in line]
    return line


@pytest.mark.usefixtures("restored_logging")
def test_json_logs_have_an_object_for_each_request(
    connect: Connect, score_body: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    logs.log_to_stderr("json", "info")
    http = connect()
    reply = http.post("/v1/score", json=score_body())
    http.get("/health")  # probes are not worth a line
    line = json.loads(logged(capsys, "mis_server.access"))
    assert {name: line[name] for name in ("level", "logger", "method", "route", "status")} == {
        "level": "INFO",
        "logger": "mis_server.access",
        "method": "POST",
        "route": "/v1/score",
        "status": 200,
    }
    assert line["request_id"] == reply.headers["x-request-id"]
    assert line["milliseconds"] > 0
    assert line["client"] == "127.0.0.1"


@pytest.mark.usefixtures("restored_logging")
def test_logs_for_people_have_a_line(connect: Connect, score_body: Any, capsys: pytest.CaptureFixture[str]) -> None:
    logs.log_to_stderr("human", "info")
    connect().post("/v1/score", json=score_body(), headers={"x-request-id": "abc"})
    connect(disable_access_log=True).post("/v1/score", json=score_body())
    line = logged(capsys, "/v1/score")
    assert "POST /v1/score 200" in line
    assert line.endswith(", abc")


def run(*arguments: str, **env: str) -> Result:
    return CliRunner().invoke(main, arguments, env=env, prog_name="mis-server")


def test_options_come_from_a_file_and_variables_and_flags_go_before(served: list[ServerConfig], tmp_path: Path) -> None:
    config = tmp_path / "mis.toml"
    config.write_text('model = "m"\nport = 1\nmax-items-per-request = 5\nskip_warmup = true\nlog-level = "error"\n')
    assert run("serve", "--config", str(config), "--port", "3", MIS_LOG_LEVEL="warning").exit_code == 0
    got = served[0]
    assert (got.engine.model, got.engine.skip_warmup, got.max_items_per_request) == ("m", True, 5)
    assert (got.port, got.log_level) == (3, "warning")
    assert run("serve", "other", MIS_CONFIG=str(config)).exit_code == 0
    assert (served[1].engine.model, served[1].port) == ("other", 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prot = 1", "unknown option 'prot'"),
        ("port = ", "is not TOML"),
        ('port = "many"', "'many' is not a valid integer"),
        ("port = 99999", "port must be from 0 to 65535"),
        ('dtype = "int3"', "'int3' is not one of"),
        ("\xff", "is not TOML"),
    ],
)
def test_a_wrong_file_is_one_line(served: list[ServerConfig], tmp_path: Path, text: str, message: str) -> None:
    config = tmp_path / "mis.toml"
    config.write_bytes(text.encode("latin-1"))
    done = run("serve", "m", "--config", str(config))
    assert done.exit_code != 0
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert served == []


def test_a_missing_file_is_one_line(served: list[ServerConfig]) -> None:
    done = run("serve", "m", "--config", "none.toml")
    assert (done.exit_code, done.stderr) == (
        1,
        "Error: --config: none.toml cannot be read: No such file or directory.\n",
    )


@pytest.mark.parametrize("name", ["max_queued_tokens", "request_timeout", "body_timeout"])
def test_limits_are_at_least_one(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        ServerConfig(engine=EngineConfig(model="m"), **{name: 0})
