"""One path for every kind of request: parse, submit, finish."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np
import pytest

from mis_core.errors import EngineUnavailable, RequestError
from mis_core.requests import EngineOutput, ScoreRequest
from mis_core.tasks.limits import Limits
from mis_core.tasks.path.service import Answered, InlineService, ThreadedService, run_blocking
from mis_core.tasks.path.task import Fields, Task
from mis_core.tasks.score.parsed import ParsedScore
from mis_core.tasks.score.task import SCORE
from mis_core.tokenization import Tokenizer

LIMITS = Limits(context_length=64, vocab_size=100)
BODY = {"query": [1, 2], "items": [[3], [4, 5]], "label_token_ids": [7, 8]}


class Engine:
    """Answers with logits of 0 unless it is told to hang, and keeps what it was asked."""

    def __init__(self, *, hangs: bool = False) -> None:
        self.futures: list[Future[EngineOutput]] = []
        self._hangs = hangs

    def queue(self, request: ScoreRequest) -> Future[EngineOutput]:
        future: Future[EngineOutput] = Future()
        self.futures.append(future)
        if not self._hangs:
            shape = request.num_items, request.label_ids.shape[1]
            logits = EngineOutput(
                np.zeros(shape, np.float32), np.full(shape[0], 1, np.float32), timings_ms={"device": 1}
            )
            future.set_result(logits)
        return future


def no_tokenizer() -> Tokenizer:
    pytest.fail("ids need no tokenizer")


def largest_label(parsed: ParsedScore, outputs: tuple[EngineOutput, ...], _: None) -> tuple[str, int]:
    return threading.current_thread().name, int(parsed.request.label_ids.max())


LARGEST: Task[ParsedScore, tuple[str, int]] = Task("largest", SCORE.parse, largest_label, SCORE.has_text)


@dataclass(frozen=True)
class Thrice:
    """One request that the engine computes three times."""

    request: ScoreRequest

    @property
    def requests(self) -> tuple[ScoreRequest, ...]:
        return (self.request,) * 3


THRICE: Task[Thrice, int] = Task(
    "thrice",
    lambda *given: Thrice(SCORE.parse(*given).request),
    lambda parsed, outputs, _: len(outputs),
    SCORE.has_text,
)


def ask(kind: type[InlineService], task: Task, fields: Fields, engine: Engine, **options: Callable) -> Answered:
    service = kind(engine.queue, LIMITS, no_tokenizer)
    answer = service.answer(task, fields, **options)
    return run_blocking(answer) if kind is InlineService else asyncio.run(answer)


@pytest.mark.parametrize("kind", [InlineService, ThreadedService])
def test_scores_come_with_their_request_and_stage_times(kind: type[InlineService]) -> None:
    answered = ask(kind, SCORE, BODY, Engine())
    assert answered.parsed.request.num_items == 2
    result = answered.result
    np.testing.assert_allclose(result.scores, np.full((2, 2), np.exp(-1)), rtol=1e-6)
    assert set(result.timings_ms) == set(answered.timings_ms) == {"tokenize", "device", "finish"}


@pytest.mark.parametrize("kind", [InlineService, ThreadedService])
def test_another_kind_of_request_is_another_task(kind: type[InlineService]) -> None:
    thread, label = ask(kind, LARGEST, BODY, Engine()).result
    assert label == 8
    assert (thread == threading.current_thread().name) is (kind is InlineService)


@pytest.mark.parametrize("kind", [InlineService, ThreadedService])
def test_what_is_refused_is_never_submitted(kind: type[InlineService]) -> None:
    engine = Engine()
    with pytest.raises(RequestError, match="query"):
        ask(kind, SCORE, BODY | {"query": []}, engine)

    def admit(parsed: ParsedScore) -> None:
        raise RequestError("queue_full", f"{parsed.requests[0].prompt_tokens} tokens are too many.")

    with pytest.raises(RequestError, match="5 tokens"):
        ask(kind, SCORE, BODY, engine, admit=admit)
    assert engine.futures == []


@pytest.mark.parametrize("kind", [InlineService, ThreadedService])
def test_a_task_may_need_several_outputs(kind: type[InlineService]) -> None:
    engine = Engine()
    answered = ask(kind, THRICE, BODY, engine)
    assert answered.result == len(engine.futures) == len(answered.outputs) == 3
    assert answered.timings_ms["device"] == 1


@pytest.mark.parametrize("kind", [InlineService, ThreadedService])
def test_when_one_of_several_fails_the_others_are_freed(kind: type[InlineService]) -> None:
    engine = Engine(hangs=True)

    def queue(request: ScoreRequest) -> Future[EngineOutput]:
        future = engine.queue(request)
        if len(engine.futures) == 1:
            future.set_exception(EngineUnavailable("lost"))
        return future

    answer = kind(queue, LIMITS, no_tokenizer).answer(THRICE, BODY)
    with pytest.raises(EngineUnavailable, match="lost"):
        run_blocking(answer) if kind is InlineService else asyncio.run(answer)
    assert [future.cancelled() for future in engine.futures] == [False, True, True]


def test_an_inline_service_needs_no_event_loop_and_disturbs_none() -> None:
    async def main() -> int:
        return ask(InlineService, LARGEST, BODY, Engine()).result[1]

    assert asyncio.run(main()) == 8


def test_whoever_stops_waiting_frees_the_request() -> None:
    engine = Engine(hangs=True)

    async def main() -> None:
        answer = asyncio.create_task(ThreadedService(engine.queue, LIMITS, no_tokenizer).answer(SCORE, BODY))
        while not engine.futures:
            await asyncio.sleep(0.01)
        answer.cancel()
        with pytest.raises(asyncio.CancelledError):
            await answer

    asyncio.run(main())
    assert engine.futures[0].cancelled()


def test_an_interrupt_frees_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(hangs=True)

    def interrupt(future: Future[EngineOutput]) -> EngineOutput:
        raise KeyboardInterrupt

    monkeypatch.setattr(Future, "result", interrupt)
    with pytest.raises(KeyboardInterrupt):
        ask(InlineService, SCORE, BODY, engine)
    assert engine.futures[0].cancelled()
