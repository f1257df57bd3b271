"""`POST /v1/systemone/batch`: a line for each state, each as a request of its own has it."""

import json
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from mis_core.errors import EngineUnavailable
from mis_core.process.client import EngineFault
from mis_core.process.wire import Ready
from mis_core.requests import EngineOutput, ScoreRequest
from mis_testing.server import RunningServer

Connect = Callable[..., httpx.Client]

PATH = "/v1/systemone/batch"
NOUL: Any = {"type": "noul", "instructions": "Is it about animals?"}
CHOICE: Any = {"type": "choice", "criteria": {"cat": "a pet", "환불": None, "🙂": {"a": 1}}}
QUESTIONS: Any = {"n": NOUL, "c.1": CHOICE, "질문": {"type": "score", "criteria": ["dry", {"label": "wet"}]}}
STATES: Any = ["A cat.", {"text": 'Rain, "가" 🙂\n', "n": [1e22, -0.5, 10**25, None]}, ["a", {}], "", {}]
BODY: Any = {"model": "jev-latest", "states": STATES, "questions": QUESTIONS}


@pytest.fixture(autouse=True)
def roomy(pretended: Any) -> None:
    pretended.info = Ready(vocab_size=1024, context_length=4096)


def lines_of(reply: httpx.Response) -> list[dict[str, Any]]:
    assert reply.status_code == 200, reply.text
    assert reply.text.endswith("\n")
    return [json.loads(line) for line in reply.text.removesuffix("\n").split("\n")]


def send(http: httpx.Client, **changes: Any) -> list[dict[str, Any]]:
    return lines_of(http.post(PATH, json=BODY | changes))


def own_replies(http: httpx.Client, **changes: Any) -> list[dict[str, Any]]:
    """What each state is told in a request of its own; of an error, what a line says of it."""
    found = []
    for state in (BODY | changes)["states"]:
        body = {name: value for name, value in (BODY | changes).items() if name != "states"}
        told = http.post("/v1/systemone", json=body | {"state": state}).json()
        if "detail" in told:
            fault = told["detail"][0] if isinstance(told["detail"], list) else told["detail"]
            told = {"error": {"code": fault.get("type", fault.get("code")), "message": fault.get("msg")}}
        found.append(told)
    return found


def codes(lines: list[dict[str, Any]]) -> list[str | None]:
    return [line["error"]["code"] if "error" in line else None for line in lines]


def wait_until(condition: Callable[[], bool]) -> None:
    for _ in range(600):
        if condition():
            return
        time.sleep(0.1)
    pytest.fail("it did not happen")


def nothing_is_under_way(http: httpx.Client) -> bool:
    text = http.get("/metrics").text
    return "mis_num_requests_waiting 0.0" in text and "mis_num_tokens_under_way 0.0" in text


def fails(pretended: Any, monkeypatch: pytest.MonkeyPatch, number: int, error: Exception) -> None:
    """Have the engine fail on one request of a row."""
    score = pretended.score

    async def failing(request: ScoreRequest) -> EngineOutput:
        output = await score(request)
        if len(pretended.requests) == number:
            raise error
        return output

    monkeypatch.setattr(pretended, "score", failing)


@pytest.mark.parametrize("changes", [{}, {"x_abstain_below": 1, "x_choice_order": "independent"}], ids=["", "options"])
def test_lines_are_the_replies_to_requests_of_their_own_in_order(http: httpx.Client, changes: Any) -> None:
    reply = http.post(PATH, json=BODY | changes)
    assert reply.headers["content-type"] == "application/x-ndjson"
    assert (reply.headers["x-accel-buffering"], reply.headers["cache-control"]) == ("no", "no-cache")
    assert reply.headers["x-typesafe-request-id"] == reply.headers["x-request-id"]
    assert lines_of(reply) == own_replies(http, **changes)
    assert len({line["usage"]["input_tokens"] for line in lines_of(reply)}) > 1


def test_states_are_sent_on_as_they_were_written(http: httpx.Client) -> None:
    states = ['"a"', '\n {"b" : [1.0, "\\ud83d\\ude42"]}\t', "[ ]", '"\\u0061"']
    shared = json.dumps(QUESTIONS)
    body = '{"x": {"states": 1}, "st\\u0061tes" : [%s], "state": 5, "questions": %s, "wombats": []}'
    kind = {"content-type": "application/json"}
    lines = lines_of(http.post(PATH, content=body % (",".join(states), shared), headers=kind))
    for state, line in zip(states, lines, strict=True):
        own = http.post("/v1/systemone", content=f'{{"state": {state}, "questions": {shared}}}', headers=kind)
        assert line == own.json()
    assert lines[0] == lines[3]


def test_a_state_that_is_wrong_is_a_line_among_the_others(http: httpx.Client) -> None:
    states = ["A cat.", 5, None, "cat " * 5000, [[[]]] * 3, "A dog.", True, json.loads("[" * 40 + "]" * 40)]
    lines = send(http, states=states)
    assert lines == own_replies(http, states=states)
    wrong = ["invalid_state", "missing_state", "context_length_exceeded"]
    assert codes(lines) == [None, *wrong, None, None, "invalid_state", "invalid_state"]


def test_a_wrong_question_is_refused_once_or_left_out_of_lines(http: httpx.Client, pretended: Any) -> None:
    questions = QUESTIONS | {"bad": {"type": "noul"}}
    reply = http.post(PATH, json=BODY | {"questions": questions})
    assert reply.status_code == 422
    assert reply.json()["detail"][0]["loc"] == ["body", "questions", "bad"]
    assert pretended.requests == []
    lines = send(http, questions=questions, x_on_error="item")
    assert lines == own_replies(http, questions=questions, x_on_error="item")
    assert all(line["x_errors"].keys() == {"bad"} for line in lines)


@pytest.mark.parametrize(
    ("changes", "loc", "kind"),
    [
        ({"states": None}, ["states"], "missing_states"),
        ({"states": []}, ["states"], "empty_states"),
        ({"states": {"a": "A cat."}}, ["states"], "invalid_states"),
        ({"states": ["a"] * 31}, ["states"], "too_many_items"),
        ({"questions": None}, ["questions"], "missing_questions"),
        ({"questions": {}}, ["questions"], "empty_questions"),
        ({"questions": [NOUL]}, ["questions"], "invalid_questions"),
        ({"questions": dict.fromkeys(map(str, range(31)), NOUL)}, ["questions"], "too_many_items"),
        ({"questions": {"q": NOUL | {"instructions": "cat " * 5000}}}, ["questions"], "context_length_exceeded"),
        ({"questions": {"q": NOUL | {"box": 1}}}, ["questions", "q", "box"], "unknown_parameter"),
        ({"x_choice_order": "any"}, ["x_choice_order"], "invalid_x_choice_order"),
        ({"x_on_error": "line"}, ["x_on_error"], "invalid_x_on_error"),
        ({"assets": {"a": {}}}, ["assets"], "unsupported_parameter"),
    ],
)
def test_a_fault_of_the_whole_body_comes_before_the_first_line(
    shared: Callable[..., Any], changes: Any, loc: list[str], kind: str
) -> None:
    http, pretended = shared(max_items_per_request=30)
    pretended.info = Ready(vocab_size=1024, context_length=4096)
    reply = http.post(PATH, json=BODY | changes)
    assert reply.status_code == 422, reply.text
    (fault,) = reply.json()["detail"]
    assert (fault["loc"], fault["type"]) == (["body", *loc], kind)
    assert pretended.requests == []


def test_so_is_all_else_that_is_not_of_one_state(http: httpx.Client, connect: Connect, pretended: Any) -> None:
    def refused(reply: httpx.Response) -> tuple[int, str]:
        assert reply.headers["x-typesafe-request-id"]
        return reply.status_code, reply.json()["detail"]["code"]

    kind = {"content-type": "application/json"}
    assert http.post(PATH, content=b'{"states": [', headers=kind).json()["detail"][0]["type"] == "invalid_json"
    assert refused(http.post(PATH, json=BODY | {"model": "other"})) == (404, "model_not_found")
    assert refused(http.get(PATH)) == (405, "method_not_allowed")
    assert refused(http.post(PATH, json=BODY, headers={"x-request-timeout": "no"})) == (400, "invalid_request_timeout")
    assert refused(connect(max_body_bytes=100).post(PATH, json=BODY)) == (413, "request_too_large")
    assert refused(connect(api_key="k").post(PATH, json=BODY)) == (401, "invalid_api_key")
    pretended.info = Ready(vocab_size=1024, context_length=4096, head_labels=("bad", "good"))
    assert refused(http.post(PATH, json=BODY)) == (400, "task_not_supported")
    pretended.ready = False
    assert refused(http.post(PATH, json=BODY)) == (503, "engine_unavailable")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (EngineUnavailable("lost"), "engine_unavailable"),
        (EngineFault("a fault"), "internal_error"),
        (ZeroDivisionError(), "internal_error"),
    ],
)
def test_an_engine_that_fails_on_one_state_answers_the_others(
    http: httpx.Client, pretended: Any, monkeypatch: pytest.MonkeyPatch, error: Exception, code: str
) -> None:
    fails(pretended, monkeypatch, 3, error)
    lines = send(http, states=["A cat."] * 40)
    assert codes(lines).count(code) == 1
    assert codes(lines).count(None) == 39
    (failed,) = (line for line in lines if "error" in line)
    assert set(failed) == {"error"}
    assert set(failed["error"]) == {"code", "message"}


def test_an_engine_that_is_gone_in_the_middle_fails_what_is_left(
    http: httpx.Client, pretended: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    score = pretended.score

    async def dying(request: ScoreRequest) -> EngineOutput:
        output = await score(request)
        pretended.ready = len(pretended.requests) < 20
        return output

    monkeypatch.setattr(pretended, "score", dying)
    found = codes(send(http, states=["A cat."] * 60))
    assert set(found) == {None, "engine_unavailable"}
    assert found[:4] == [None] * 4
    assert found[-20:] == ["engine_unavailable"] * 20


def test_lines_are_sent_as_soon_as_all_before_them_are_there(
    http: httpx.Client, pretended: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    score, hangs = pretended.score, threading.Event()

    async def stopping(request: ScoreRequest) -> EngineOutput:
        pretended.hangs = len(request.query) > 200
        if pretended.hangs:
            hangs.set()
        return await score(request)

    monkeypatch.setattr(pretended, "score", stopping)
    states = ["A cat.", "A dog.", "cat " * 300, "A bird."]
    with http.stream("POST", PATH, json=BODY | {"states": states}) as reply:
        lines = reply.iter_lines()
        assert codes([json.loads(next(lines)) for _ in range(2)]) == [None] * 2
        assert hangs.wait(60)
        assert not pretended.was_cancelled.is_set()
    assert pretended.was_cancelled.wait(60)


def test_a_client_that_leaves_frees_its_work(http: httpx.Client, pretended: Any) -> None:
    pretended.hangs = True
    with pytest.raises(httpx.ReadTimeout):
        http.post(PATH, json=BODY | {"states": ["A cat."] * 500}, timeout=1)
    assert pretended.was_cancelled.wait(60)
    assert 0 < len(pretended.requests) <= 16
    wait_until(lambda: nothing_is_under_way(http))


@pytest.mark.parametrize(("padding", "at_a_time"), [(10, 16), (600_000, 3), (3_000_000, 1)])
def test_fewer_states_are_under_way_if_their_questions_are_large(
    http: httpx.Client, pretended: Any, padding: int, at_a_time: int
) -> None:
    pretended.hangs = True
    questions = {"n": NOUL | {"x_note": "a" * padding}}
    with http.stream("POST", PATH, json={"states": ["A cat."] * 20, "questions": questions}):
        wait_until(lambda: len(pretended.requests) == at_a_time)
        time.sleep(0.3)
        assert len(pretended.requests) == at_a_time


def test_a_client_that_reads_late_gets_every_line(http: httpx.Client, pretended: Any) -> None:
    wrong = {f"{number:->60}": {"type": "noul"} for number in range(200)}  # so that lines are long, and made fast
    asked = {"states": ["A cat."] * 50, "questions": {"n": NOUL} | wrong, "x_on_error": "item"}
    body = json.dumps(asked).encode()
    with socket.socket() as reader:
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reader.connect((http.base_url.host, http.base_url.port))
        head = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
        reader.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        begun = -1
        while len(pretended.requests) > begun or not begun:  # until no further state is
            begun = len(pretended.requests)
            time.sleep(0.5)
        assert begun < 40
        assert "mis_num_tokens_under_way 0.0" in http.get("/metrics").text
        assert send(http, states=["A cat."])[0]["answers"]
        received = bytearray()
        while part := reader.recv(1 << 20):
            received += part
    assert received.startswith(b"HTTP/1.1 200 OK")
    assert received.endswith(b"\r\n0\r\n\r\n")
    assert received.count(b'{"model":') == 50
    assert len(pretended.requests) == 51


def test_past_the_deadline_every_remaining_state_has_its_error(
    http: httpx.Client, pretended: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    score = pretended.score

    async def stopping(request: ScoreRequest) -> EngineOutput:
        pretended.hangs = len(pretended.requests) >= 5
        return await score(request)

    monkeypatch.setattr(pretended, "score", stopping)
    reply = http.post(PATH, json=BODY | {"states": ["A cat."] * 100}, headers={"x-request-timeout": "2"})
    found = codes(lines_of(reply))
    assert len(found) == 100
    assert found[-90:] == ["deadline_exceeded"] * 90
    assert set(found) <= {None, "deadline_exceeded"}
    assert pretended.was_cancelled.wait(60)
    wait_until(lambda: nothing_is_under_way(http))


@pytest.mark.parametrize(
    "options", [{"max_queued_requests": 1}, {"max_queued_requests": 3}, {"max_queued_tokens": 500}]
)
def test_a_body_alone_is_answered_whatever_the_limit_of_requests(
    connect: Connect, pretended: Any, options: Any
) -> None:
    http = connect(**options)
    assert codes(send(http, states=["A cat."] * 50)) == [None] * 50
    assert len(pretended.requests) == 50
    wait_until(lambda: nothing_is_under_way(http))


def test_each_state_counts_as_a_request(connect: Connect, pretended: Any) -> None:
    http = connect(max_queued_requests=20)
    pretended.hangs = True
    with (
        http.stream("POST", PATH, json=BODY | {"states": ["A cat."] * 30}),
        http.stream("POST", PATH, json=BODY | {"states": ["A dog."] * 4}),
    ):
        wait_until(lambda: len(pretended.requests) == 20)
        assert "mis_num_requests_waiting 20.0" in http.get("/metrics").text
        assert http.post("/v1/systemone", json={"state": "a", "questions": {"n": NOUL}}).status_code == 429


def test_a_full_queue_is_an_error_of_all_or_of_a_state(connect: Connect, pretended: Any) -> None:
    http = connect(max_queued_requests=16)
    pretended.hangs = True
    with http.stream("POST", PATH, json=BODY | {"states": ["A cat."] * 17}):
        wait_until(lambda: len(pretended.requests) == 16)
        refused = http.post(PATH, json=BODY)
        assert (refused.status_code, refused.json()["detail"]["code"]) == (429, "queue_full")
        assert int(refused.headers["retry-after"]) > 0
    assert pretended.was_cancelled.wait(60)
    wait_until(lambda: nothing_is_under_way(http))
    http = connect(max_queued_tokens=1000)
    with http.stream("POST", PATH, json=BODY | {"states": ["cat " * 200]}):
        wait_until(lambda: len(pretended.requests) == 17)
        lines = send(http, states=["cat " * 300] * 3)  # though no state of its own is under way
    assert codes(lines) == ["queue_full"] * 3
    assert "tokens are under way; try again later." in lines[0]["error"]["message"]


def test_metrics_count_each_state(http: httpx.Client) -> None:
    send(http, states=["A cat.", 5, "A dog."])
    text = http.get("/metrics").text
    assert 'mis_requests_total{task="decide"} 2.0' in text
    assert f'http_requests_total{{handler="{PATH}",method="POST",status="200"}} 1.0' in text


def test_a_line_has_the_bits_of_a_request_of_its_own(server: RunningServer) -> None:
    states = [*STATES, *(f"{number} cats and {number % 7} dogs. " * (1 + number % 9) for number in range(40)), 7]
    with httpx.Client(base_url=server.base_url, trust_env=False, timeout=240) as http:
        lines = send(http, states=states)
        assert send(http, states=states[-9:], padding="a" * 200_000)[-1] == lines[-1]  # as a large body is read
        own = own_replies(http, states=states)
    assert codes(lines) == [None] * 45 + ["invalid_state"]
    for line, alone in zip(lines, own, strict=True):
        for each in (line, alone):
            each.get("usage", {}).pop("x_cached_tokens", None)
        assert line == alone
