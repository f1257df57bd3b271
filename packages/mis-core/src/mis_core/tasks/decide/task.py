"""The task `decide` as OpenAI asks it: a list of questions about a text, messages or tool records."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from mis_core.calibration import Calibrations
from mis_core.requests import EngineOutput, ScoreRequest
from mis_core.tasks.decide.answers import (
    Decision,
    DecisionUsage,
    InputTokensDetails,
    QuestionError,
    RefusalAnswer,
    answer,
)
from mis_core.tasks.decide.asked import Asked, Subject, ask
from mis_core.tasks.decide.body import DecisionBody
from mis_core.tasks.decide.conversation import read_conversation, state_of
from mis_core.tasks.decide.judged import Judged, judge
from mis_core.tasks.decide.questions import MAX_QUESTIONS, read_question
from mis_core.tasks.fields.body import check_model, read_body
from mis_core.tasks.fields.field import Field
from mis_core.tasks.fields.item_errors import ItemError
from mis_core.tasks.fields.values import check_count
from mis_core.tasks.limits import Limits
from mis_core.tasks.path.task import Fields, ServedModels, Task
from mis_core.tasks.served import check_task
from mis_core.tokenization import Tokenizer


@dataclass(frozen=True, slots=True, eq=False)
class ParsedDecision:
    """A request for decisions.

    Attributes:
        asked: What is asked.
        names: What each answer is called, or None.
    """

    asked: Asked
    names: tuple[str | None, ...]

    @property
    def requests(self) -> tuple[ScoreRequest, ...]:
        """What the engine computes."""
        return self.asked.requests


def parse_decision(
    fields: Fields, tokenizer: Tokenizer | None, limits: Limits, served_models: ServedModels = None
) -> ParsedDecision:
    """Validate the fields of a request, and make and tokenise its prompts; see `Task.parse`."""
    body = read_body(DecisionBody, fields)
    check_task("decide", tokenizer, limits)
    assert tokenizer is not None, "as checked"
    check_model(body.model, served_models)
    conversation = read_conversation(body.input)
    check_count(len(body.questions), MAX_QUESTIONS, "questions", "questions")
    given = Field(body.questions, "questions").elements(1, MAX_QUESTIONS)
    choice_order = body.choice_order or limits.choice_order
    subject = Subject(
        "input",
        state_of(conversation),
        conversation,
        body.on_error == "item",
        choice_order,
        _cache_salt(body),
        body.calibration == "none",
    )
    return ParsedDecision(
        ask(subject, given, lambda _, each: read_question(each), tokenizer, limits), tuple(map(_name, given))
    )


def finish_decision(
    parsed: ParsedDecision, outputs: tuple[EngineOutput, ...], calibrations: Calibrations | None = None
) -> Decision:
    """Turn what the engine computed into answers; see `Task.finish`."""
    judged = judge(parsed.asked, outputs, calibrations)
    answers = tuple(
        RefusalAnswer(name, QuestionError(each.code, each.message, each.param))
        if isinstance(each, ItemError)
        else answer(each)
        for name, each in zip(parsed.names, judged, strict=True)
    )
    tokens = sum(request.prompt_tokens for request in parsed.requests)
    cached = sum(output.cached_tokens for output in outputs)
    return Decision(
        answers,
        DecisionUsage(tokens, InputTokensDetails(cached), tokens),
        msgspec.UNSET if calibrations is None else tuple(map(_calibration, judged)),
    )


DECIDE: Task[ParsedDecision, Decision] = Task("decide", parse_decision, finish_decision, model_names=("gpt-6-luna",))


def _calibration(judged: Judged | ItemError) -> str | None:
    return judged.calibration or None if isinstance(judged, Judged) else None


def _cache_salt(body: DecisionBody) -> str | None:
    """Return who shares cached prefixes: requests of the same `cache_salt` and `prompt_cache_key`."""
    salt, key = body.cache_salt, body.prompt_cache_key
    if key is None:
        return salt
    return "prompt_cache_key:" + hashlib.sha256(json.dumps([salt, key]).encode()).hexdigest()


def _name(source: Field) -> str | None:
    """Return the name of a question that may be wrong in any way."""
    name = source.value.get("name") if isinstance(source.value, Mapping) else None
    return name if isinstance(name, str) else None
