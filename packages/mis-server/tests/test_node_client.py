"""OpenAI's official client for Node, unchanged, against a real server. `nox -s clients_node` runs this."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest

from mis_testing.server import RunningServer

PROGRAM = Path(__file__).parent / "node_client.cjs"

pytestmark = pytest.mark.skipif(
    shutil.which("node") is None or "NODE_PATH" not in os.environ,
    reason="needs Node and its openai client, which nox -s clients_node installs",
)


@pytest.fixture(scope="module")
def replies(server: RunningServer) -> dict[str, Any]:
    model = httpx.get(f"{server.base_url}/v1/models", trust_env=False).json()["data"][0]["id"]
    command = ["node", str(PROGRAM), f"{server.base_url}/v1", model]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout) | {"model": model}


def ask(server: RunningServer, path: str, body: dict[str, Any]) -> dict[str, Any]:
    return httpx.post(f"{server.base_url}{path}", json=body, trust_env=False, timeout=60).raise_for_status().json()


def test_models_are_listed(replies: dict[str, Any]) -> None:
    assert replies["models"] == [replies["model"]]


def test_chats_are_what_http_answers_and_streams_say_the_same(server: RunningServer, replies: dict[str, Any]) -> None:
    body = {"messages": [{"role": "user", "content": "Do cats purr?"}], "max_tokens": 1, "temperature": 0}
    (choice,) = ask(server, "/v1/chat/completions", body | {"logprobs": True, "top_logprobs": 3})["choices"]
    assert replies["chat"]["choices"] == [choice]
    assert len(choice["logprobs"]["content"][0]["top_logprobs"]) == 3
    deltas = [chunk["choices"][0]["delta"].get("content") or "" for chunk in replies["streamed"]]
    assert "".join(deltas) == choice["message"]["content"]


def test_longer_answers_stream(replies: dict[str, Any]) -> None:
    (choice,) = replies["longer"]["choices"]
    told = [chunk["choices"][0] for chunk in replies["written"]]
    assert "".join(each["delta"].get("content") or "" for each in told) == choice["message"]["content"]
    tokens = [token for each in told if each["logprobs"] for token in each["logprobs"]["content"]]
    assert tokens == choice["logprobs"]["content"]
    assert len(tokens) > 1


def test_completions_have_log_probabilities_of_the_prompt(server: RunningServer, replies: dict[str, Any]) -> None:
    body = {"prompt": "Cats purr.", "max_tokens": 1, "temperature": 0, "echo": True, "logprobs": 2}
    assert replies["completion"]["choices"] == ask(server, "/v1/completions", body)["choices"]
    logprobs = replies["completion"]["choices"][0]["logprobs"]
    assert logprobs["token_logprobs"][0] is None
    assert "".join(logprobs["tokens"][:-1]) == "Cats purr."


def test_scores_come_through_post(server: RunningServer, replies: dict[str, Any]) -> None:
    body = {"query": "Is it about cats? ", "items": ["Yes", "No"], "labels": ["a", "b"], "apply_softmax": True}
    assert replies["score"]["scores"] == ask(server, "/v1/score", body)["scores"]


def test_a_refusal_is_its_exception(replies: dict[str, Any]) -> None:
    refused = replies["refused"]
    assert (refused["name"], refused["status"]) == ("BadRequestError", 400)
    assert (refused["code"], refused["param"]) == ("unsupported_parameter", "tools")
    assert refused["requestID"]
