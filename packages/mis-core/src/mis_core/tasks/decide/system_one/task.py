"""The task `decide` as System One asks it; many questions about one state in one packed request."""

from dataclasses import dataclass

import msgspec

from mis_core.calibration import Calibrations
from mis_core.errors import RequestError
from mis_core.requests import EngineOutput, ScoreRequest
from mis_core.tasks.decide.asked import Asked, Subject, ask
from mis_core.tasks.decide.content import as_text, read_any
from mis_core.tasks.decide.conversation import Message
from mis_core.tasks.decide.judged import judge
from mis_core.tasks.decide.questions import Question
from mis_core.tasks.decide.system_one.answers import (
    FailedQuestion,
    SystemOneAnswer,
    SystemOneResult,
    SystemOneUsage,
    answer,
)
from mis_core.tasks.decide.system_one.body import SystemOneBody
from mis_core.tasks.decide.system_one.questions import AnswerNeeds, read_question
from mis_core.tasks.fields.body import check_model, read_body
from mis_core.tasks.fields.field import Field
from mis_core.tasks.fields.item_errors import ItemError
from mis_core.tasks.fields.values import check_count
from mis_core.tasks.limits import Limits
from mis_core.tasks.path.task import Fields, ServedModels, Task
from mis_core.tasks.served import check_task
from mis_core.tokenization import Tokenizer


@dataclass(frozen=True, slots=True, eq=False)
class ParsedSystemOne:
    """A request of System One.

    Attributes:
        asked: What is asked.
        needs: By the id of each question what its answer needs; None of those that cannot be asked.
        abstain_below: The least confidence that all want, or None.
    """

    asked: Asked
    needs: dict[str, AnswerNeeds | None]
    abstain_below: float | None

    @property
    def requests(self) -> tuple[ScoreRequest, ...]:
        """What the engine computes."""
        return self.asked.requests


def parse_system_one(
    fields: Fields, tokenizer: Tokenizer | None, limits: Limits, served_models: ServedModels = None
) -> ParsedSystemOne:
    """Validate the fields of a request, and make and tokenise its prompts; see `Task.parse`."""
    body = read_body(SystemOneBody, fields)
    check_task("decide", tokenizer, limits)
    assert tokenizer is not None, "as checked"
    check_model(body.model, served_models)
    if body.assets is not None:
        message = "assets holds images; the model reads text only. Leave them out, or describe them in words."
        raise RequestError("unsupported_parameter", message, "assets")
    check_count(len(body.questions), limits.max_items, "questions", "questions")
    state = read_any(Field(body.state, "state"))
    given = Field(body.questions, "questions").entries(1, limits.max_items)
    needs: dict[str, AnswerNeeds | None] = dict.fromkeys(given)
    ids = list(given)

    def read(index: int, source: Field) -> Question:
        question, needs[ids[index]] = read_question(ids[index], source)
        return question

    choice_order = body.x_choice_order or limits.choice_order
    subject = Subject(
        "state",
        state,
        [Message(role="user", content=as_text(state))],
        body.x_on_error == "item",
        choice_order,
        body.x_cache_salt,
        body.x_calibration == "none",
    )
    asked = ask(subject, list(given.values()), read, tokenizer, limits)
    return ParsedSystemOne(asked, needs, body.x_abstain_below)


def finish_system_one(
    parsed: ParsedSystemOne, outputs: tuple[EngineOutput, ...], calibrations: Calibrations | None = None
) -> SystemOneResult:
    """Turn what the engine computed into answers; see `Task.finish`."""
    answers: dict[str, SystemOneAnswer] = {}
    failed: dict[str, FailedQuestion] = {}
    abstained: list[str] = []
    calibration: dict[str, str | None] = {}
    may_abstain = parsed.abstain_below is not None
    for (name, needs), each in zip(parsed.needs.items(), judge(parsed.asked, outputs, calibrations), strict=True):
        if isinstance(each, ItemError):
            failed[name] = FailedQuestion(each.code, each.message)
            continue
        assert needs is not None, "it was read"
        answers[name] = made = answer(each, needs.legend)
        calibration[name] = each.calibration or None
        least = parsed.abstain_below if needs.abstain_below is None else needs.abstain_below
        may_abstain |= needs.abstain_below is not None
        if least is not None and made.certainty < least:
            abstained.append(name)
    tokens = sum(request.prompt_tokens for request in parsed.requests)
    return SystemOneResult(
        answers=answers,
        usage=SystemOneUsage(tokens, sum(output.cached_tokens for output in outputs)),
        x_abstained=tuple(abstained) if may_abstain else msgspec.UNSET,
        x_joint=parsed.asked.is_joint or msgspec.UNSET,
        x_errors=failed or msgspec.UNSET,
        x_calibration=msgspec.UNSET if calibrations is None else calibration,
    )


SYSTEM_ONE: Task[ParsedSystemOne, SystemOneResult] = Task(
    "decide", parse_system_one, finish_system_one, model_names=("jev-latest",)
)
