"""Metrics for Prometheus: those that dashboards of other servers know, prefixed with `mis_`, and those of scoring."""

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from mis_core.tasks.path.service import Answered
from mis_core.tasks.probabilities import label_logprobs

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_METHODS = frozenset({"GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH"})
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_COUNTS = (1, 3, 10, 30, 100, 300, 1000, 3000, 10_000, 20_000)
_SHARES = (0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0)

# From the engine's statistics: key, kind, name in Prometheus, help.
_ENGINE = (
    ("steps", "counter", "mis_engine_steps", "Device steps."),
    ("new_tokens", "counter", "mis_engine_new_tokens", "Tokens computed, without padding."),
    ("step_tokens", "counter", "mis_engine_step_tokens", "Tokens computed, with the padding of steps."),
    ("requests", "counter", "mis_engine_requests", "Requests that reached the engine."),
    ("compilations", "counter", "mis_engine_compilations", "Executables compiled since the engine was ready."),
    ("cache_hit_tokens", "counter", "mis_prefix_cache_hits", "Query tokens found in the prefix cache."),
    ("cache_queried_tokens", "counter", "mis_prefix_cache_queries", "Query tokens looked up in the prefix cache."),
    ("evicted_pages", "counter", "mis_prefix_cache_evicted_pages", "Pages evicted to make room."),
    ("waiting_requests", "gauge", "mis_num_requests_running", "Requests in the engine."),
    ("cache_usage", "gauge", "mis_kv_cache_usage_perc", "Fraction of the KV cache that requests use; 1 is all of it."),
    ("cached_pages", "gauge", "mis_kv_cache_cached_pages", "Pages with prefixes for later requests."),
    ("free_pages", "gauge", "mis_kv_cache_free_pages", "Pages that hold nothing."),
    ("held_pages", "gauge", "mis_kv_cache_held_pages", "Pages that requests use."),
    ("pages", "gauge", "mis_kv_cache_pages", "Pages in total."),
    ("evicted_states", "counter", "mis_prefix_cache_evicted_states", "Recurrent states evicted to make room."),
    ("free_states", "gauge", "mis_recurrent_states_free", "Slots for recurrent states that hold nothing."),
    ("states", "gauge", "mis_recurrent_states", "Slots for recurrent states in total; 0 without recurrent layers."),
)
# From the front process.
_FRONT = (
    ("up", "gauge", "mis_engine_up", "Whether the engine can answer."),
    ("restarts", "counter", "mis_engine_restarts", "Restarts of the engine."),
    ("step_budget", "gauge", "mis_engine_step_budget_tokens", "Maximum number of tokens per step."),
    ("requests_waiting", "gauge", "mis_num_requests_waiting", "Requests that have arrived but are not in the engine."),
    ("tokens_under_way", "gauge", "mis_num_tokens_under_way", "Tokens of requests between arrival and reply."),
    ("sequences_under_way", "gauge", "mis_num_sequences_under_way", "Answers of requests between arrival and reply."),
)


class Metrics:
    """The metrics of one application."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.engine = _EngineStatistics()
        self.registry.register(self.engine)
        self._http = self._counter("http_requests", "Requests by route and status.", ("method", "handler", "status"))
        self._http_seconds = self._histogram(
            "http_request_duration_seconds", "From headers to the end of the reply.", _SECONDS, ("method", "handler")
        )
        self._tasks = self._counter("mis_requests", "Answered requests by task.", ("task",))
        self._algorithms = self._counter(
            "mis_requests_by_algorithm", "Answered requests by the scoring algorithm used.", ("algorithm",)
        )
        self._items = self._histogram("mis_request_items", "Items per request.", _COUNTS)
        self._prompt_tokens = self._counter("mis_prompt_tokens", "Tokens of answered requests; a query counts once.")
        self._cached_tokens = self._counter(
            "mis_cached_prompt_tokens", "Prompt tokens that came from the prefix cache."
        )
        self._scored = self._counter("mis_items", "Items scored.")
        self._seconds = self._histogram(
            "mis_e2e_request_latency_seconds", "From the body's arrival to the scores.", _SECONDS
        )
        self._stage_seconds = self._histogram(
            "mis_stage_seconds", "Time of requests in each stage.", _SECONDS, ("stage",)
        )
        self._generated = self._counter("mis_generation_tokens", "Tokens written into answers.")
        self._first_token_seconds = self._histogram(
            "mis_time_to_first_token_seconds", "From the body's arrival to an answer's first token.", _SECONDS
        )
        self._token_seconds = self._histogram(
            "mis_time_per_output_token_seconds", "From one token of an answer to the next.", _SECONDS
        )
        self._mass = self._histogram(
            "mis_label_mass",
            "Total probability of the labels, mean over a request's items, where the full vocabulary was normalised.",
            _SHARES,
        )

    def _counter(self, name: str, help: str, labels: tuple[str, ...] = ()) -> Counter:
        return Counter(name, help, labels, registry=self.registry)

    def _histogram(self, name: str, help: str, buckets: tuple[float, ...], labels: tuple[str, ...] = ()) -> Histogram:
        return Histogram(name, help, labels, buckets=buckets, registry=self.registry)

    def answered(self, task: str, answered: Answered[Any, Any], seconds: float) -> None:
        """Count one request of a task."""
        self._tasks.labels(task).inc()
        self._seconds.observe(seconds)
        for stage, milliseconds in answered.timings_ms.items():
            self._stage_seconds.labels(stage).observe(milliseconds / 1e3)
        for request, output in zip(answered.parsed.requests, answered.outputs, strict=True):
            self._algorithms.labels(output.algorithm).inc()
            self._items.observe(request.num_items)
            self._scored.inc(request.num_items)
            self.prompted(request.prompt_tokens, output.cached_tokens)
            is_read_once = request.num_reads == request.num_items  # else rows are not of items
            if output.log_sum_exp is not None and output.logits.size and is_read_once:
                mass = np.exp(label_logprobs(output))[np.broadcast_to(request.label_ids >= 0, output.logits.shape)]
                self._mass.observe(float(mass.sum()) / len(output.logits))

    def prompted(self, tokens: int, cached: int) -> None:
        """Count the tokens of a prompt, and how many of them came from the prefix cache."""
        self._prompt_tokens.inc(tokens)
        self._cached_tokens.inc(cached)

    def generated(self, seconds: float, *, is_first: bool) -> None:
        """Count a token of an answer, so many seconds after the body or after the token before it."""
        self._generated.inc()
        (self._first_token_seconds if is_first else self._token_seconds).observe(seconds)

    def replied(self, method: str, handler: str, status: int, seconds: float) -> None:
        """Count one HTTP request; `handler` is the route's pattern, never the path that the client sent."""
        if method not in _METHODS:
            method = "other"  # clients may invent any number of methods
        self._http.labels(method, handler, str(status)).inc()
        self._http_seconds.labels(method, handler).observe(seconds)

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self.registry)


class TokenClock:
    """Times the tokens of one request's answers."""

    def __init__(self, metrics: Metrics) -> None:
        """Start when the body has arrived."""
        self._metrics = metrics
        self._began = time.perf_counter()
        self._last: dict[int, float] = {}

    @property
    def seconds(self) -> float:
        """Seconds since the body arrived."""
        return time.perf_counter() - self._began

    def generated(self, index: int) -> None:
        """Record an answer's next token."""
        now = time.perf_counter()
        self._metrics.generated(now - self._last.get(index, self._began), is_first=index not in self._last)
        self._last[index] = now


class _EngineStatistics(Collector):
    """The last known statistics of the engine, and what the front knows about it."""

    def __init__(self) -> None:
        self.statistics: dict[str, float] = {}
        self.front: dict[str, float] = {}

    def update(self, statistics: dict[str, float]) -> None:
        """Take the engine's statistics, and what follows from them."""
        found, missed = (statistics.get(key, 0) for key in ("cache_hit_tokens", "cache_missed_tokens"))
        usage = statistics.get("held_pages", 0) / max(statistics.get("pages", 1), 1)
        self.statistics = statistics | {"cache_queried_tokens": found + missed, "cache_usage": usage}

    def collect(self) -> Iterator[Metric]:
        for table, values in ((_ENGINE, self.statistics), (_FRONT, self.front)):
            for key, kind, name, meaning in table:
                if key in values:
                    family = CounterMetricFamily if kind == "counter" else GaugeMetricFamily
                    yield family(name, meaning, values[key])
