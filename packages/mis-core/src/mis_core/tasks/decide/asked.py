"""Questions that are asked, whatever wire format they came in: their prompts, and what the model's outputs say of them.

The query is the rendered conversation; an item is a question and what the template writes after it, so all questions of
a request are answered by the next token in one packed request. A question is as many items as its options are read in
orders.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int64

from mis_core.config import ChoiceOrder
from mis_core.errors import RequestError
from mis_core.ragged import offsets
from mis_core.requests import EngineOutput, ScoreRequest
from mis_core.tasks.decide.asked_question import AskedQuestion, OwnStyle, Prompt, Style, cut_prompt
from mis_core.tasks.decide.codes import Codes
from mis_core.tasks.decide.content import Content
from mis_core.tasks.decide.contract import ContractStyle
from mis_core.tasks.decide.conversation import Message
from mis_core.tasks.decide.prompts import Prompter
from mis_core.tasks.decide.questions import Question
from mis_core.tasks.fields.field import Field
from mis_core.tasks.fields.item_errors import ItemError, ItemErrors
from mis_core.tasks.fields.labels import label_matrix
from mis_core.tasks.fields.token_rows import TokenRows
from mis_core.tasks.fields.values import check_characters, check_count
from mis_core.tasks.limits import Limits
from mis_core.tasks.probabilities import check_finite, label_logprobs, label_softmax
from mis_core.tokenization import NOTHING, Joined, Tokenizer


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """What the engine computes, and for each question what is asked, or why it is not.

    Attributes:
        requests: One for questions whose prompts share a beginning; its items are those of the first question, then
            those of the next.
        members: The questions of each request, by their numbers; none of those that are not asked.
        questions: All questions in their order.
        is_joint: Whether answers depend on the other questions.
    """

    requests: tuple[ScoreRequest, ...]
    members: tuple[tuple[int, ...], ...]
    questions: tuple[AskedQuestion | ItemError, ...]
    is_joint: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """What the model says of a question.

    Attributes:
        question: The question.
        probabilities: `[labels]` among all of them, in the order they were given, averaged over the orders in which
            they were read; of a predicate those of yes and no.
        best: Place of the most probable option, of equals the one that is read first.
        label_mass: Probability of all its labels together over the whole vocabulary; None of a trained head, which
            says nothing of that.
    """

    question: Question
    probabilities: Float64[np.ndarray, " labels"]
    best: int
    label_mass: float | None


@dataclass(frozen=True, slots=True)
class Subject:
    """What a request asks about, and how it wants to be answered.

    Attributes:
        field: Name of the field that holds it, for errors.
        state: What it is, for prompts that know no messages.
        conversation: Its messages.
        per_item: Whether the others are answered where a question is wrong.
        choice_order: In which orders options are read.
        cache_salt: Who shares cached prefixes, or None.
    """

    field: str
    state: Content
    conversation: Sequence[Message]
    per_item: bool
    choice_order: ChoiceOrder
    cache_salt: str | None


def ask(
    subject: Subject,
    given: Sequence[Field],
    read: Callable[[int, Field], Question],
    tokenizer: Tokenizer,
    limits: Limits,
) -> Asked:
    """Read questions, and make and tokenise their prompts.

    Args:
        subject: What they are about.
        given: The questions as they were given.
        read: Reads one, which stands at an index of them.
        tokenizer: The model's, with a meter.
        limits: What a request may ask for.

    Raises:
        RequestError: a question cannot be asked, or all of them are too much.
    """
    errors = ItemErrors("questions", len(given), per_item=subject.per_item)
    questions = errors.read_each(given, read)
    texts = {
        subject.field: [message["content"] for message in subject.conversation],
        "questions": [text for question in questions for text in question.texts],
    }
    check_characters(limits.max_text_characters, **texts)
    style = _style(subject, tokenizer, limits)
    found = errors.read_each(
        questions, lambda index, question: style.ask(question, subject.choice_order, given[index].path)
    )
    _check_counts(found, limits)
    asked = dict(zip(errors.kept.tolist(), found, strict=True))
    paths = [each.path for each in given]
    requests: list[ScoreRequest] = []
    members: list[tuple[int, ...]] = []
    for part, prompts in _by_beginning(asked, errors, style, limits):
        joined = _join(asked, paths, part, style, prompts, tokenizer, limits, subject.field)
        if not part.any_left:
            continue
        members.append(tuple(part.kept.tolist()))
        kept = [asked[index] for index in members[-1]]
        labels = label_matrix(TokenRows.nested("questions", [each.labels[1] for each in kept for _ in each.orders]))
        has_head = tokenizer.decision is not None and bool(tokenizer.decision.head_offsets)
        requests.append(ScoreRequest(*joined, labels, apply_softmax=has_head, cache_salt=subject.cache_salt))
    _check_tokens(requests, limits, subject.field)
    refused = {error.index: error for error in errors.errors}
    each = tuple(refused.get(index) or asked[index] for index in range(len(given)))
    return Asked(tuple(requests), tuple(members), each, style.is_joint)


def judge(asked: Asked, outputs: tuple[EngineOutput, ...]) -> list[Judged | ItemError]:
    """Return what the engine's outputs say of each question, or why it was not asked.

    The probability of a label is the softmax over the labels of its item, as that of a score with `apply_softmax`.
    """
    found: dict[int, Judged | ItemError] = {
        index: each for index, each in enumerate(asked.questions) if isinstance(each, ItemError)
    }
    for request, output, own in zip(asked.requests, outputs, asked.members, strict=True):
        questions = {index: each for index in own if isinstance(each := asked.questions[index], AskedQuestion)}
        temperatures = [each.temperature for each in questions.values() for _ in each.orders]
        probabilities, masses = _probabilities(request, output, np.array(temperatures))
        begin = 0
        for index, each in questions.items():
            rows = slice(begin, begin + len(each.orders))
            begin = rows.stop
            mass = None if masses is None else float(masses[rows].mean())
            found[index] = _judged(each, probabilities[rows, : len(each.labels[0])], mass)
    return [found[index] for index in range(len(asked.questions))]


def _judged(
    asked: AskedQuestion, probabilities: Float64[np.ndarray, "rows labels"], label_mass: float | None
) -> Judged:
    by_option = np.zeros(len(asked.orders[0]))
    for order, row in zip(asked.orders, probabilities, strict=True):
        by_option[order] += row
    by_option /= len(asked.orders)
    best = max(asked.orders[0], key=lambda index: by_option[index])
    return Judged(asked.question, by_option, best, label_mass)


def _probabilities(
    request: ScoreRequest, output: EngineOutput, temperatures: Float64[np.ndarray, " items"]
) -> tuple[Float64[np.ndarray, "items labels"], Float64[np.ndarray, " items"] | None]:
    """Return the probability of each label of each item, and that of all its labels over the whole vocabulary.

    The latter is None where labels are rows of a trained head.
    """
    is_label = request.label_ids >= 0
    check_finite(output.logits[is_label])
    probabilities = label_softmax(output.logits, request.label_ids, temperatures[:, None]).astype(np.float64)
    if not request.needs_log_sum_exp:
        return probabilities, None
    over_all = np.exp(label_logprobs(output).astype(np.float64)) * is_label
    return probabilities, np.minimum(over_all.sum(axis=1), 1.0)  # rounded, they may come out above


def _style(subject: Subject, tokenizer: Tokenizer, limits: Limits) -> Style:
    if tokenizer.decision is not None:
        return ContractStyle(tokenizer, tokenizer.decision, subject.state, subject.field, limits.vocab_size)
    prompter = Prompter(tokenizer, subject.conversation, subject.field)
    return OwnStyle(prompter, Codes(tokenizer.within(None), prompter, limits.vocab_size))


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


def _by_beginning(
    asked: dict[int, AskedQuestion], errors: ItemErrors, style: Style, limits: Limits
) -> Iterator[tuple[ItemErrors, dict[int, list[Prompt]]]]:
    """Yield the questions whose prompts have one beginning, as those of an `ItemErrors`, and their prompts."""
    kept = [asked[index] for index in errors.kept.tolist()]
    if style.is_joint or not kept:
        yield errors, {}
        return
    found: dict[str, dict[int, list[Prompt]]] = {}
    for index, prompts in zip(errors.kept.tolist(), style.prompts(kept, limits.max_text_characters), strict=True):
        shared = min((prompt.shared for prompt in prompts), key=len)
        found.setdefault(shared, {})[index] = [
            prompt if prompt.shared == shared else cut_prompt(prompt.shared + prompt.rest, shared) for prompt in prompts
        ]
    for prompts in found.values():
        yield errors.part(np.array(list(prompts))), prompts


def _join(
    asked: dict[int, AskedQuestion],
    paths: Sequence[str],
    errors: ItemErrors,
    style: Style,
    prompts: dict[int, list[Prompt]],
    tokenizer: Tokenizer,
    limits: Limits,
    field: str,
) -> Joined:
    """Tokenise the prompts of the questions that are kept, which begin alike; return the segments of those that fit."""
    kept = [asked[index] for index in errors.kept.tolist()]
    if not kept:
        return NOTHING
    most, most_tokens = limits.max_text_characters, limits.context_length
    if style.is_joint:
        return style.joined(kept, most_tokens)
    of_kept = [prompt for index in errors.kept.tolist() for prompt in prompts[index]]
    shared, rests = of_kept[0].shared, [prompt.rest for prompt in of_kept]
    check_characters(most, **{field: [shared], "questions": rests})
    starts = offsets(np.array([len(each.orders) for each in kept]))[:-1]

    def refuse(is_bad: np.ndarray, error: Callable[[int, int], RequestError]) -> Int64[np.ndarray, " rows"]:
        """Refuse the questions of some prompts; what is left is joined once more."""

        def first(row: int, index: int) -> RequestError:
            found = error(int(starts[row] + is_bad[starts[row] :].argmax()), index)
            named = found.message.replace(f"questions[{index}]", paths[index], 1)  # where they have ids
            return RequestError(found.code, named, found.param)

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
            fields=(field, "questions"),
            refuse=refuse,
            marked=True,
        )
    except RequestError as error:
        code = error.code
        if code == "context_length_exceeded" and len(rests) == 1 and tokenizer.decision is not None:
            # Of a single prompt that a contract makes, nearly all is shared.
            message = f"{field} and question have more tokens than the context holds, which is {most_tokens}."

            def too_long_alone(row: int, index: int) -> RequestError:
                return RequestError(code, f"{paths[index]}: {message}", "questions")

            errors.refuse(np.array([True]), too_long_alone)
            return NOTHING
        if code == "context_length_exceeded":
            message = f"The {field} alone has more tokens than the context holds, which is {most_tokens}."
            raise RequestError(code, message, field) from None
        raise
    longest = np.maximum.reduceat(joined.context_lens + np.diff(joined.item_starts), starts)

    def too_long(row: int, index: int) -> RequestError:
        message = (
            f"{paths[index]}: {field} and question have {longest[row]} tokens together; the context holds "
            f"{most_tokens}."
        )
        return RequestError("context_length_exceeded", message, "questions")

    if len(errors.kept) == len(kept):
        errors.refuse(longest > most_tokens, too_long)
    if len(errors.kept) < len(kept):
        return _join(asked, paths, errors, style, prompts, tokenizer, limits, field)
    return joined


def _check_tokens(requests: Sequence[ScoreRequest], limits: Limits, field: str) -> None:
    count = sum(len(request.query) + len(request.item_tokens) for request in requests)
    limits.check_tokens(count, f"{field.capitalize()} and questions", "questions")
