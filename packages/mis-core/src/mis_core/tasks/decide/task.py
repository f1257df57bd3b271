"""The task `decide`: many questions about one input, each answered by the next token, in one packed request.

The query is the rendered conversation; an item is a question and what the template writes after it. With
`choice_order: "independent"` a choice is as many items as its options have orders.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int64

from mis_core.errors import RequestError
from mis_core.ragged import offsets
from mis_core.requests import EngineOutput, ScoreRequest
from mis_core.tasks.decide.answers import (
    Answer,
    Decision,
    DecisionUsage,
    InputTokensDetails,
    QuestionError,
    RefusalAnswer,
    answer,
)
from mis_core.tasks.decide.body import DecisionBody
from mis_core.tasks.decide.codes import Codes, Labels
from mis_core.tasks.decide.conversation import read_conversation
from mis_core.tasks.decide.prompts import Prompter
from mis_core.tasks.decide.questions import MAX_QUESTIONS, Question, read_question
from mis_core.tasks.fields.body import check_model, read_body
from mis_core.tasks.fields.field import Field
from mis_core.tasks.fields.item_errors import ItemErrors
from mis_core.tasks.fields.labels import label_matrix
from mis_core.tasks.fields.token_rows import TokenRows
from mis_core.tasks.fields.values import check_characters, check_count
from mis_core.tasks.limits import Limits
from mis_core.tasks.path.task import Fields, ServedModels, Task
from mis_core.tasks.probabilities import check_finite, label_logprobs, label_softmax
from mis_core.tasks.served import check_task
from mis_core.tokenization import NOTHING, Joined, Tokenizer


@dataclass(frozen=True, slots=True, eq=False)
class AskedQuestion:
    """A question that is asked.

    Attributes:
        question: The question.
        orders: The orders in which its options are read, each an item of the request.
        labels: Its labels, in the order they are read.
    """

    question: Question
    orders: list[list[int]]
    labels: Labels

    @property
    def texts(self) -> list[str]:
        """What the model reads, a text for each order."""
        return [self.question.text(self.labels[0], order) for order in self.orders]


@dataclass(frozen=True, slots=True, eq=False)
class ParsedDecision:
    """What the engine computes, and for each question what was asked, or why it was not.

    Attributes:
        requests: One request, whose items are those of the first question that is asked, then those of the next;
            nothing if none is.
        questions: All questions in their order.
    """

    requests: tuple[ScoreRequest, ...]
    questions: tuple[AskedQuestion | RefusalAnswer, ...]


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
    sources = Field(body.questions, "questions").elements(1, MAX_QUESTIONS)
    errors = ItemErrors("questions", len(sources), per_item=body.on_error == "item")
    is_rotated = body.choice_order == "independent"
    questions = errors.read_each(sources, lambda _, source: read_question(source))
    check_characters(
        limits.max_text_characters,
        input=[message["content"] for message in conversation],
        questions=[text for question in questions for text in question.texts],
    )
    prompter = Prompter(tokenizer.chat_template, conversation, tokenizer.meter)
    codes = Codes(tokenizer.within(None), prompter, limits.vocab_size)

    def ask(index: int, question: Question) -> AskedQuestion:
        return AskedQuestion(
            question, question.orders(is_rotated=is_rotated), codes.labels(question, f"questions[{index}]")
        )

    read = errors.read_each(questions, ask)
    _check_counts(read, limits)
    asked = dict(zip(errors.kept.tolist(), read, strict=True))
    joined = _join(asked, errors, prompter, tokenizer, limits)
    requests: tuple[ScoreRequest, ...] = ()
    if errors.any_left:
        kept = [asked[index] for index in errors.kept.tolist()]
        labels = TokenRows.nested("questions", [each.labels[1] for each in kept for _ in each.orders])
        requests = (ScoreRequest(*joined, label_matrix(labels), cache_salt=_cache_salt(body)),)
    refused = {
        error.index: RefusalAnswer(_name(sources[error.index]), QuestionError(error.code, error.message, error.param))
        for error in errors.errors
    }
    each = tuple(refused.get(index) or asked[index] for index in range(len(sources)))
    return ParsedDecision(requests, each)


def finish_decision(parsed: ParsedDecision, outputs: tuple[EngineOutput, ...]) -> Decision:
    """Turn what the engine computed into answers; see `Task.finish`.

    The probability of a label is the softmax over the labels of its item, as that of a score with `apply_softmax`.
    """
    probabilities, masses = np.zeros((0, 0)), np.zeros(0)
    tokens = cached_tokens = 0
    if parsed.requests:
        (request,), (output,) = parsed.requests, outputs
        probabilities, masses = _probabilities(request, output)
        tokens, cached_tokens = request.prompt_tokens, output.cached_tokens
    answers: list[Answer] = []
    begin = 0
    for each in parsed.questions:
        if isinstance(each, RefusalAnswer):
            answers.append(each)
            continue
        rows = slice(begin, begin + len(each.orders))
        begin = rows.stop
        own = probabilities[rows, : len(each.labels[0])]
        answers.append(answer(each.question, each.orders, own, float(masses[rows].mean())))
    return Decision(tuple(answers), DecisionUsage(tokens, InputTokensDetails(cached_tokens), tokens))


def _probabilities(
    request: ScoreRequest, output: EngineOutput
) -> tuple[Float64[np.ndarray, "items labels"], Float64[np.ndarray, " items"]]:
    """Return the probability of each label of each item, and that of all its labels over the whole vocabulary."""
    is_label = request.label_ids >= 0
    check_finite(output.logits[is_label])
    probabilities = label_softmax(output.logits, request.label_ids).astype(np.float64)
    over_all = np.exp(label_logprobs(output).astype(np.float64)) * is_label
    return probabilities, np.minimum(over_all.sum(axis=1), 1.0)  # rounded, they may come out above


DECIDE: Task[ParsedDecision, Decision] = Task("decide", parse_decision, finish_decision)


def _cache_salt(body: DecisionBody) -> str | None:
    """Return who shares cached prefixes: requests of the same `cache_salt` and `prompt_cache_key`."""
    salt, key = body.cache_salt, body.prompt_cache_key
    if key is None:
        return salt
    return "prompt_cache_key:" + hashlib.sha256(json.dumps([salt, key]).encode()).hexdigest()


def _check_counts(asked: Sequence[AskedQuestion], limits: Limits) -> None:
    items, labels = sum(len(each.orders) for each in asked), max((len(each.labels[0]) for each in asked), default=0)
    check_count(items, limits.max_items, "questions, each choice once for each of its orders", "questions")
    check_count(labels, limits.max_labels, "labels", "questions", "too_many_labels")
    if items * labels > limits.max_scores:
        message = (
            f"{items} questions with up to {labels} answers make {items * labels} scores; at most {limits.max_scores} "
            "are allowed. Ask fewer questions at a time."
        )
        raise RequestError("too_many_labels", message, "questions")


def _join(
    asked: dict[int, AskedQuestion], errors: ItemErrors, prompter: Prompter, tokenizer: Tokenizer, limits: Limits
) -> Joined:
    """Tokenise the prompts of the questions that are kept; return the segments of those that fit."""
    kept = [asked[index] for index in errors.kept.tolist()]
    if not kept:
        return NOTHING
    most, most_tokens = limits.max_text_characters, limits.context_length
    shared, rests = prompter.prompts([text for each in kept for text in each.texts], most)
    check_characters(most, input=[shared], questions=rests)
    starts = offsets(np.array([len(each.orders) for each in kept]))[:-1]

    def refuse(is_bad: np.ndarray, error: Callable[[int, int], RequestError]) -> Int64[np.ndarray, " rows"]:
        """Refuse the questions of some prompts; what is left is joined once more."""

        def first(row: int, index: int) -> RequestError:
            return error(int(starts[row] + is_bad[starts[row] :].argmax()), index)

        errors.refuse(np.logical_or.reduceat(is_bad, starts), first)
        return np.arange(len(is_bad))

    try:
        joined = tokenizer.join(
            shared,
            rests,
            item_first=not shared,
            add_special_tokens=False,
            context_length=most_tokens,
            max_characters=most,
            fields=("input", "questions"),
            refuse=refuse,
        )
    except RequestError as error:
        if error.code == "context_length_exceeded":
            message = f"The input alone has more tokens than the context holds, which is {most_tokens}."
            raise RequestError(error.code, message, "input") from None
        raise
    longest = np.maximum.reduceat(joined.context_lens + np.diff(joined.item_starts), starts)

    def too_long(row: int, index: int) -> RequestError:
        message = (
            f"questions[{index}]: input and question have {longest[row]} tokens together; the context holds "
            f"{most_tokens}."
        )
        return RequestError("context_length_exceeded", message, "questions")

    if len(errors.kept) == len(kept):
        errors.refuse(longest > most_tokens, too_long)
    if len(errors.kept) < len(kept):
        return _join(asked, errors, prompter, tokenizer, limits)
    limits.check_tokens(len(joined.query) + len(joined.item_tokens), "Input and questions", "questions")
    return joined


def _name(source: Field) -> str | None:
    """Return the name of a question that may be wrong in any way."""
    name = source.value.get("name") if isinstance(source.value, Mapping) else None
    return name if isinstance(name, str) else None
