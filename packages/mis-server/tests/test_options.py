"""What options change in a running server: TLS, CORS, logs; and the file that options may come from."""

import json
import logging
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme
from click.testing import CliRunner, Result
from cryptography.hazmat.primitives import serialization

from mis_core.config import EngineConfig
from mis_core.errors import ConfigError
from mis_server.cli import main
from mis_server.edge.tls import tls_context
from mis_server.settings import ServerConfig
from mis_server.telemetry import logs

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


def test_clients_need_a_certificate_if_authorities_are_named(
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
    assert "must be given together" in done.stderr


@pytest.mark.parametrize("only", ["ssl_ca_certs", "ssl_keyfile_password"])
def test_what_belongs_to_a_certificate_is_refused_without_one(only: str) -> None:
    flag = f"--{only.replace('_', '-')}"
    done = run("serve", "m", flag, "secret")
    assert done.exit_code == 1
    assert done.stderr == f"Error: {flag}: {only} needs ssl_certfile and ssl_keyfile.\n"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"ssl_certfile": "{folder}/none.pem"}, "--ssl-certfile: {folder}/none.pem cannot be read: No such file"),
        ({"ssl_certfile": "{folder}"}, "--ssl-certfile: {folder} cannot be read: Is a directory"),
        ({"ssl_certfile": "{folder}/key.pem"}, "--ssl-certfile: {folder}/key.pem has no certificate in PEM form."),
        ({"ssl_certfile": "{folder}/text"}, "--ssl-certfile: {folder}/text has no certificate in PEM form."),
        ({"ssl_keyfile": "{folder}/none.pem"}, "--ssl-keyfile: {folder}/none.pem cannot be read: No such file"),
        ({"ssl_keyfile": "{folder}/text"}, "--ssl-keyfile: {folder}/text has no private key in PEM form."),
        (
            {"ssl_keyfile": "{folder}/other.pem"},
            "--ssl-keyfile: {folder}/other.pem is not the private key of {folder}/cert.pem",
        ),
        ({"ssl_keyfile": "{folder}/locked.pem"}, "--ssl-keyfile-password: {folder}/locked.pem is encrypted; give its"),
        (
            {"ssl_keyfile": "{folder}/locked.pem", "ssl_keyfile_password": "wrong"},
            "--ssl-keyfile-password: wrong password for {folder}/locked.pem.",
        ),
        ({"ssl_ca_certs": "{folder}/none.pem"}, "--ssl-ca-certs: {folder}/none.pem cannot be read: No such file"),
        ({"ssl_ca_certs": "{folder}/key.pem"}, "--ssl-ca-certs: {folder}/key.pem has no certificate in PEM form."),
    ],
)
def test_a_wrong_https_file_is_one_line_before_anything_loads(
    changes: dict[str, str], said: str, certificate: dict[str, str], authority: trustme.CA, tmp_path: Path
) -> None:
    (tmp_path / "text").write_text("no PEM")
    authority.issue_cert("other").private_key_pem.write_to_path(tmp_path / "other.pem")
    lock(tmp_path / "key.pem", tmp_path / "locked.pem", b"right")
    options = {name: value.format(folder=tmp_path) for name, value in (certificate | changes).items()}
    flags = [part for name, value in options.items() for part in (f"--{name.replace('_', '-')}", value)]
    done = run("serve", "/no/such/model", "--port", "0", *flags)
    assert done.exit_code == 1
    assert done.stderr.startswith(f"Error: {said.format(folder=tmp_path)}")
    assert done.stderr.count("\n") == 1


def test_an_encrypted_key_is_opened_by_its_password(certificate: dict[str, str], tmp_path: Path) -> None:
    lock(tmp_path / "key.pem", tmp_path / "locked.pem", b"right")
    locked = certificate | {"ssl_keyfile": str(tmp_path / "locked.pem"), "ssl_keyfile_password": "right"}
    assert tls_context(ServerConfig(engine=EngineConfig(model="m"), **locked)) is not None


def lock(key: Path, path: Path, password: bytes) -> None:
    """Write a key once more, encrypted."""
    plain = serialization.load_pem_private_key(key.read_bytes(), None)
    encryption = serialization.BestAvailableEncryption(password)
    kind = serialization.PrivateFormat.PKCS8
    path.write_bytes(plain.private_bytes(serialization.Encoding.PEM, kind, encryption))


@pytest.mark.parametrize("host", ["no.such.host.invalid", "203.0.113.7", "[::1]", "a..b", "x" * 70, "ä" * 70])
def test_an_unusable_host_is_one_line_that_names_it(host: str) -> None:
    done = run("serve", "/no/such/model", "--port", "0", "--host", host)
    assert done.exit_code == 1
    assert done.stderr.startswith("Error: --host: ")
    assert host in done.stderr
    assert done.stderr.count("\n") == 1


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
    """Return the only line of the log with a part."""
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


def test_variables_and_flags_override_options_of_a_file(served: list[ServerConfig], tmp_path: Path) -> None:
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
        ('port = "many"', "Error: port in mis.toml: 'many' is not a valid integer"),
        ("port = 1.5", "Error: port in mis.toml: '1.5' is not a valid integer"),
        ("port = true", "Error: port in mis.toml: 'true' is not a valid integer"),
        ("port = [1]", "Error: port in mis.toml: expected one value, not a list."),
        ("[port]\nnumber = 1", "Error: port in mis.toml: expected one value, not a table."),
        ("port = 99999", "Error: port in mis.toml: port must be from 0 to 65535"),
        ("tp-size = 0", "Error: tp_size in mis.toml: tp_size must be at least 1, not 0."),
        ("skip-warmup = 3", "Error: skip_warmup in mis.toml: '3' is not a valid boolean"),
        ('dtype = "int3"', "Error: dtype in mis.toml: 'int3' is not one of"),
        ("\xff", "is not TOML"),
    ],
)
def test_a_wrong_file_is_one_line(
    served: list[ServerConfig], tmp_path: Path, text: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mis.toml").write_bytes(text.encode("latin-1"))
    done = run("serve", "m", "--config", "mis.toml")
    assert done.exit_code == 1
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert served == []


@pytest.mark.parametrize(
    ("flags", "env", "message"),
    [
        (["--port", "99999"], {}, "Error: --port: port must be"),
        (["--port", "many"], {}, "Error: Invalid value for '--port': 'many' is not"),
        ([], {"MIS_PORT": "99999"}, "Error: MIS_PORT: port must be"),
        ([], {"MIS_PORT": "many"}, "Error: MIS_PORT: 'many' is not"),
        (["--port", "many"], {"MIS_PORT": "1"}, "Error: Invalid value for '--port': 'many' is not"),
    ],
)
def test_a_wrong_value_is_told_of_where_it_was_given(flags: list[str], env: dict[str, str], message: str) -> None:
    done = run("serve", "m", *flags, **env)
    assert done.exit_code != 0
    assert message in done.stderr


def test_a_file_may_list_the_labels_of_files_that_are_scored(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs: list[Any] = []

    def score_file(job: Any, config: EngineConfig, **_: Any) -> int:
        jobs.append((job.asked.labels, job.asked.label_token_ids, config.skip_warmup))
        return 0

    monkeypatch.setattr("mis_server.offline.score_file", score_file)
    config = tmp_path / "mis.toml"
    config.write_text('labels = [" yes", " no"]\nlabel-token-ids = [1, 2]\nskip-warmup = true\n')
    done = run("score", str(checkpoint), "--items", "items.jsonl", "--config", str(config))
    assert done.exit_code == 0, done.stderr
    assert jobs == [((" yes", " no"), (1, 2), True)]
    config.write_text('labels = " yes"\ntemperature = "hot"\n')
    done = run("score", str(checkpoint), "--items", "items.jsonl", "--config", str(config))
    assert done.stderr == f"Error: temperature in {config}: 'hot' is not a valid float.\n"


def test_a_missing_file_is_one_line(served: list[ServerConfig]) -> None:
    done = run("serve", "m", "--config", "none.toml")
    assert (done.exit_code, done.stderr) == (
        1,
        "Error: --config: none.toml cannot be read: No such file or directory.\n",
    )


@pytest.mark.parametrize(
    "name",
    ["max_queued_tokens", "max_queued_sequences", "max_sequences_per_request", "request_timeout", "body_timeout"],
)
def test_limits_are_at_least_one(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        ServerConfig(engine=EngineConfig(model="m"), **{name: 0})
