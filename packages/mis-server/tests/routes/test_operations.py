"""Probes, metrics and what a server tells about itself. Alive is not the same as ready."""

import dataclasses
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

import mis_core
import mis_server
from mis_core.config import EngineConfig
from mis_core.errors import EngineUnavailable
from mis_server.settings import ServerConfig
from mis_server.tokenizers.pool import TokenizersUnavailable

Connect = Callable[..., httpx.Client]


def test_health_answers_whatever_the_engine_does(http: httpx.Client, pretended: Any) -> None:
    for _ in range(2):
        for path in ("/health", "/ping"):
            reply = http.get(path)
            assert (reply.status_code, reply.json()) == (200, {"status": "ok"})
        pretended.ready = False


def test_ready_follows_the_engine(http: httpx.Client, pretended: Any) -> None:
    assert http.get("/ready").status_code == 200
    pretended.ready = False
    reply = http.get("/ready")
    assert reply.status_code == 503
    assert reply.json()["error"]["code"] == "engine_unavailable"
    assert int(reply.headers["retry-after"]) > 0
    pretended.ready = True
    assert http.get("/ready").status_code == 200


def test_ready_follows_the_tokenizer(http: httpx.Client, tokenizers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizers, "ready", False)
    reply = http.get("/ready")
    assert reply.status_code == 503
    assert reply.json()["error"]["code"] == "engine_unavailable"
    monkeypatch.undo()
    assert http.get("/ready").status_code == 200


def test_health_generate_scores_on_the_device(http: httpx.Client, pretended: Any) -> None:
    assert http.get("/health_generate").json() == {"status": "ok"}
    assert len(pretended.requests) == 1
    pretended.error = EngineUnavailable("dead")
    assert http.get("/health_generate").status_code == 503


def test_health_generate_does_not_wait_for_ever(
    http: httpx.Client, pretended: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mis_server.routes.operations._GENERATE_S", 0.1)
    pretended.hangs = True
    assert http.get("/health_generate").status_code == 503
    assert pretended.was_cancelled.wait(60)


def test_versions_are_those_of_the_packages(http: httpx.Client) -> None:
    assert http.get("/version").json() == {"version": mis_server.__version__, "mis_core": mis_core.__version__}


def test_server_info_has_every_setting_but_the_secrets(connect: Connect) -> None:
    http = connect(api_key="sesame", admin_api_key="sesame2", max_items_per_request=77)
    reply = http.get("/server_info", headers={"authorization": "Bearer sesame"})
    info = reply.json()
    assert "sesame" not in reply.text
    names = {field.name for config in (EngineConfig, ServerConfig) for field in dataclasses.fields(config)}
    assert set(info["settings"]) == names - {"engine", "api_key", "admin_api_key", "ssl_keyfile_password"}
    assert info["settings"]["max_items_per_request"] == 77
    assert info["statistics"]["steps"] == 3
    assert info["engine"] == {"devices": "1 x pretended", "step_tokens": 2048}


@pytest.mark.parametrize("path", ["/get_server_info", "/get_model_info", "/model_info", "/load", "/ping"])
def test_routes_of_other_servers_need_the_key_and_hide_secrets(connect: Connect, path: str) -> None:
    http = connect(api_key="sesame", admin_api_key="sesame2")
    assert http.get(path).status_code == 401
    reply = http.get(path, headers={"authorization": "Bearer sesame"})
    assert reply.status_code == 200
    assert "sesame" not in reply.text


def test_server_info_in_the_shape_of_sglang_is_flat(connect: Connect) -> None:
    options = {"tp_size": 2, "tokenizer_path": "its/tokenizer"}
    http = connect(engine_options=options, served_model_name="ranker", max_items_per_request=77)
    flat, nested = http.get("/get_server_info").json(), http.get("/server_info").json()
    assert (flat["model_path"], flat["served_model_name"]) == ("some/model", "ranker")
    assert flat["internal_states"] == [nested["statistics"]]
    assert flat["version"] == mis_server.__version__
    expected = nested["settings"] | nested["engine"] | {"served_model_name": "ranker"}
    assert {name: flat[name] for name in expected} == expected
    assert (flat["tp_size"], flat["max_items_per_request"], flat["devices"]) == (2, 77, "1 x pretended")


@pytest.mark.parametrize("path", ["/model_info", "/get_model_info"])
def test_the_model_is_described_with_the_names_of_sglang(connect: Connect, pretended: Any, path: str) -> None:
    http = connect(served_model_name="ranker")
    info = http.get(path).json()
    assert info == {
        "model_path": "some/model",
        "tokenizer_path": "some/model",
        "served_model_name": "ranker",
        "is_generation": True,
        "tasks": ["score", "rerank", "decide", "complete", "chat"],
        "context_length": 256,
        "vocab_size": 1024,
        "preferred_sampling_params": None,
        "has_image_understanding": False,
        "has_audio_understanding": False,
    }
    pretended.ready, pretended.info = False, None
    starting = http.get(path).json()
    assert starting == info | {"context_length": None, "vocab_size": None, "tasks": []}


def test_load_counts_what_is_under_way(http: httpx.Client, pretended: Any, score_body: Any) -> None:
    nothing = {"server_load": 0, "requests_waiting": 0, "tokens_under_way": 0, "states_used": 0, "states_free": 0}
    assert http.get("/load").json() == nothing
    pretended.hangs = True
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(http.post, "/v1/score", json=score_body(), headers={"x-request-timeout": "3"})
        assert pretended.started.wait(60)
        pretended.in_flight = 1
        assert http.get("/load").json() == nothing | {"server_load": 1, "tokens_under_way": 6}
        assert waiting.result().status_code == 504
    assert http.get("/load").json() == nothing


def test_load_has_the_slots_for_states_last_reported(http: httpx.Client, pretended: Any) -> None:
    pretended.statistics = {"states": 32, "free_states": 27}
    pretended.error = EngineUnavailable("nobody may be asked")
    load = http.get("/load").json()
    assert (load["states_used"], load["states_free"]) == (5, 27)


def samples(http: httpx.Client) -> dict[str, float]:
    """Every sample of `/metrics`, read by Prometheus' own parser."""
    reply = http.get("/metrics")
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    return {
        sample.name + "".join(f",{name}={value}" for name, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(reply.text)
        for sample in family.samples
    }


def test_metrics_count_what_was_asked(http: httpx.Client, score_body: Any) -> None:
    for _ in range(3):
        assert http.post("/v1/score", json=score_body()).status_code == 200
    assert http.post("/v1/score", json=score_body(items=[])).status_code == 400
    http.get("/no/such/<script>")
    for method in ("PROPFIND", "REPORT", "MKCOL"):
        http.request(method, "/v1/score")
    got = samples(http)
    assert got["http_requests_total,handler=/v1/score,method=POST,status=200"] == 3
    assert got["http_requests_total,handler=/v1/score,method=POST,status=400"] == 1
    assert got["http_requests_total,handler=none,method=GET,status=404"] == 1
    assert sum(value for name, value in got.items() if "http_requests_total" in name and "status=405" in name) == 3
    assert not [name for name in got if "PROPFIND" in name]
    assert got["mis_items_total"] == 6
    assert got["mis_prompt_tokens_total"] == 18
    assert got["mis_cached_prompt_tokens_total"] == 3
    assert got["mis_request_items_sum"] == 6
    assert got["mis_e2e_request_latency_seconds_count"] == 3
    assert got["mis_stage_seconds_count,stage=tokenize"] == 3
    assert got["mis_requests_by_algorithm_total,algorithm=packed"] == 3
    assert got["mis_requests_total,task=score"] == 3
    assert got["mis_num_requests_waiting"] == 0
    # Labels 7 and 8 behind items that end in 5 and 6, and the pretended normaliser of 4.
    mass = np.exp(np.array([[0.75, 0.85], [0.76, 0.86]]) - 4).sum() / 2
    assert got["mis_label_mass_sum"] == pytest.approx(3 * mass, rel=1e-5)


def test_metrics_have_the_engines_counts(http: httpx.Client, pretended: Any) -> None:
    got = samples(http)
    assert (got["mis_engine_steps_total"], got["mis_engine_new_tokens_total"]) == (3, 90)
    assert got["mis_engine_step_tokens_total"] == 128
    assert (got["mis_prefix_cache_hits_total"], got["mis_prefix_cache_queries_total"]) == (5, 20)
    assert got["mis_kv_cache_usage_perc"] == 0.25
    assert (got["mis_engine_up"], got["mis_engine_restarts_total"]) == (1, 0)
    assert got["mis_engine_step_budget_tokens"] == 2048
    pretended.ready, pretended.error, pretended.restarts = False, EngineUnavailable("dead"), 2
    got = samples(http)
    assert (got["mis_engine_up"], got["mis_engine_restarts_total"]) == (0, 2)
    assert got["mis_engine_steps_total"] == 3  # the last known; a scrape never fails


def test_labels_of_several_tokens_have_no_mass(http: httpx.Client) -> None:
    body = {"query": "Is it", "items": [" so"], "labels": ["a", "a b c d e"]}
    assert http.post("/v1/score", json=body).status_code == 200
    got = samples(http)
    assert got["mis_requests_total,task=score"] == 1
    assert got["mis_label_mass_count"] == 0


def test_softmax_alone_says_nothing_of_the_label_mass(http: httpx.Client, score_body: Any) -> None:
    http.post("/v1/score", json=score_body(apply_softmax=True))
    assert samples(http)["mis_label_mass_count"] == 0
    http.post("/v1/score", json=score_body(apply_softmax=True, return_token_logprobs=True))
    assert samples(http)["mis_label_mass_count"] == 1


def test_a_server_that_cannot_tokenise_is_not_ready_and_says_why(
    pretended: Any, tokenizers: Any, connected: Callable[..., Any]
) -> None:
    class Ended:
        tokenizer = tokenizers.tokenizer

        def check(self) -> None:
            raise TokenizersUnavailable("No tokenizer process starts.")

    with connected(pretended, Ended()) as http:
        reply = http.get("/ready")
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "engine_unavailable")
        assert reply.json()["error"]["message"] == "No tokenizer process starts."
        assert http.get("/health").status_code == 200
