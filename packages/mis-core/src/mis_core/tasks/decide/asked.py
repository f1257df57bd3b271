"""Questions that are asked, whatever wire format they came in, and their prompts.

The query is the rendered conversation; an item is a question and what the template writes after it, so all questions of
a request are answered by the next token in one packed request. A question is as many items as its options are read in
orders.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np
from jaxtyping import Int64

from mis_core.calibration import Identity, digest_of, label_tuples, relative_orders
from mis_core.config import ChoiceOrder
from mis_core.errors import RequestError
from mis_core.ragged import offsets
from mis_core.requests import ScoreRequest
from mis_core.tasks.decide.asked_question import AskedQuestion, OwnStyle, Prompt, Style, cut_prompt
from mis_core.tasks.decide.codes import Codes
from mis_core.tasks.decide.content import Content
from mis_core.tasks.decide.contract import ContractStyle
from mis_core.tasks.decide.conversation import Message
from mis_core.tasks.decide.pointer import PointerStyle
from mis_core.tasks.decide.prompts import Prompter
from mis_core.tasks.decide.questions import Question
from mis_core.tasks.fields.field import Field
from mis_core.tasks.fields.item_errors import ItemError, ItemErrors
from mis_core.tasks.fields.values import check_characters, check_count
from mis_core.tasks.limits import Limits
from mis_core.tokenization import NOTHING, Joined, Tokenizer
from mis_core.tokenization.decision_contract import DecisionContract
from mis_core.tokenization.pointer_contract import PointerContract


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """What the engine computes, and for each question what is asked, or why it is not.

    Attributes:
        requests: One for questions whose prompts share a beginning; its items are those of the first question, then
            those of the next.
        members: The questions of each request, by their numbers; none of those that are not asked.
        questions: All questions in their order.
        is_joint: Whether answers depend on the other questions.
        points: Whether a pointer head answers, whose values `pointed` returns; otherwise labels do.
    """

    requests: tuple[ScoreRequest, ...]
    members: tuple[tuple[int, ...], ...]
    questions: tuple[AskedQuestion | ItemError, ...]
    is_joint: bool = False
    points: bool = False


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
        is_raw: Whether it wants no calibration.
    """

    field: str
    state: Content
    conversation: Sequence[Message]
    per_item: bool
    choice_order: ChoiceOrder
    cache_salt: str | None
    is_raw: bool = False


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
    if limits.identified and not subject.is_raw and not style.is_joint:
        found = _identified(found, style, tokenizer)
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
        requests.append(style.request(joined, kept, subject.cache_salt))
    _check_tokens(requests, limits, subject.field)
    refused = {error.index: error for error in errors.errors}
    each = tuple(refused.get(index) or asked[index] for index in range(len(given)))
    points = isinstance(style, PointerStyle)
    return Asked(tuple(requests), tuple(members), each, is_joint=style.is_joint, points=points)


def _style(subject: Subject, tokenizer: Tokenizer, limits: Limits) -> Style:
    match tokenizer.decision:
        case PointerContract() as contract:
            return PointerStyle(tokenizer, contract, subject.state, subject.field, limits)
        case DecisionContract() as contract:
            return ContractStyle(tokenizer, contract, subject.state, subject.field, limits.vocab_size)
    prompter = Prompter(tokenizer, subject.conversation, subject.field)
    return OwnStyle(prompter, Codes(tokenizer.within(None), prompter, limits.vocab_size))


def _identified(asked: Sequence[AskedQuestion], style: Style, tokenizer: Tokenizer) -> list[AskedQuestion]:
    """Return questions with what their calibrations belong to: all that the model reads and the state is no part of."""
    contract = tokenizer.decision
    templates = [] if isinstance(style, PointerStyle) else [tokenizer.chat_template, tokenizer.decision_template]
    if isinstance(contract, DecisionContract):
        contract = msgspec.structs.replace(contract, template=None)
    read = [None if template is None else template.identity for template in templates]
    prompt = digest_of([type(style).__name__, contract, read])
    reads_name = isinstance(contract, DecisionContract) and not contract.in_chat  # a template of its own may
    return [
        replace(each, identity=_identity(each, prompt, is_own=isinstance(style, OwnStyle), reads_name=reads_name))
        for each in asked
    ]


def _identity(asked: AskedQuestion, prompt: str, *, is_own: bool, reads_name: bool) -> Identity:
    question, first = asked.question, asked.orders[0]
    options = [question.options[index] for index in first] if question.options else list(question.sides)
    name = question.name if reads_name else None
    read = asked.texts if is_own else [question.kind, name, question.instructions, options]
    labels, orders = label_tuples(asked.labels[1].tolist()), relative_orders(asked.orders)
    return Identity(task="decide", labels=labels, decision_prompt=prompt, question=digest_of(read), orders=orders)


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
    if style.makes_tokens or not kept:
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
    if style.makes_tokens:
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
            message = f"{field} and question together have more than the context's {most_tokens} tokens."

            def too_long_alone(row: int, index: int) -> RequestError:
                return RequestError(code, f"{paths[index]}: {message}", "questions")

            errors.refuse(np.array([True]), too_long_alone)
            return NOTHING
        if code == "context_length_exceeded":
            message = f"The {field} alone has more than the context's {most_tokens} tokens."
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
