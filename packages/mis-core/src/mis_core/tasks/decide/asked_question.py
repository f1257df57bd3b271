"""A question that is asked, and the ways in which questions become prompts."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from mis_core.calibration import Identity
from mis_core.config import ChoiceOrder
from mis_core.requests import ScoreRequest
from mis_core.tasks.decide.codes import Codes, Labels
from mis_core.tasks.decide.prompts import Prompter
from mis_core.tasks.decide.questions import Question
from mis_core.tasks.fields.labels import label_matrix
from mis_core.tasks.fields.token_rows import TokenRows
from mis_core.tokenization import Joined


@dataclass(frozen=True, slots=True, eq=False)
class AskedQuestion:
    """A question that is asked.

    Attributes:
        question: The question.
        orders: The orders in which its options are read, each an item of the request.
        labels: Its labels, in the order they are read.
        temperature: What logits of its labels are divided by.
        identity: What a calibration of it belongs to, where it may have one.
    """

    question: Question
    orders: list[list[int]]
    labels: Labels
    temperature: float = 1.0
    identity: Identity | None = None

    @property
    def texts(self) -> list[str]:
        """What the model reads in our own prompt, a text for each order."""
        in_one_order = len(self.orders) == 1
        return [self.question.text(self.labels[0], order, in_one_order=in_one_order) for order in self.orders]


class Prompt(NamedTuple):
    """A prompt, as its beginning and what follows.

    Where it is cut depends on what it is about and on the question, never on other questions: an answer would otherwise
    have other bits in other company.

    Attributes:
        shared: Its beginning, which prompts of other questions may share.
        rest: What follows, at least one character.
    """

    shared: str
    rest: str


def cut_prompt(prompt: str, beginning: str) -> Prompt:
    """Cut a prompt behind a beginning, or behind as much of it as it has."""
    end = len(beginning) if prompt.startswith(beginning) else len(os.path.commonprefix([prompt, beginning]))  # noqa: RUF071
    end = min(end, len(prompt) - 1)
    return Prompt(prompt[:end], prompt[end:])


@runtime_checkable
class Style(Protocol):
    """How the questions of a request become prompts.

    Attributes:
        is_joint: Whether all questions stand in one prompt, so that answers depend on the other questions.
        makes_tokens: Whether it makes tokens itself, by `joined`, for all questions at once; otherwise it makes texts,
            by `prompts`.
    """

    is_joint: bool
    makes_tokens: bool

    def ask(self, question: Question, choice_order: ChoiceOrder, path: str) -> AskedQuestion:
        """Return a question with its labels.

        Args:
            question: The question.
            choice_order: In which orders options are read.
            path: Where it is, for errors.

        Raises:
            RequestError: `too_few_label_tokens`, or it is too long.
        """

    def prompts(self, asked: Sequence[AskedQuestion], max_characters: int) -> list[list[Prompt]]:
        """Return the prompts of each question, one for each of its orders.

        Args:
            asked: Questions, at least one.
            max_characters: Most that are rendered where each prompt must be rendered for itself.

        Raises:
            RequestError: a template refuses a prompt, or they are too long.
        """

    def joined(self, asked: Sequence[AskedQuestion], context_length: int) -> Joined:
        """Return the tokens of all questions, where it `makes_tokens`.

        Args:
            asked: Questions, at least one.
            context_length: Most tokens of a prompt.

        Raises:
            RequestError: as `prompts`.
        """

    def request(self, joined: Joined, asked: Sequence[AskedQuestion], cache_salt: str | None) -> ScoreRequest:
        """Return what the engine computes for questions.

        Args:
            joined: Their tokens; an item for each order of each question.
            asked: The questions.
            cache_salt: Who shares cached prefixes, or None.

        Raises:
            RequestError: it would be too much.
        """


def label_request(
    joined: Joined, asked: Sequence[AskedQuestion], cache_salt: str | None, *, has_head: bool
) -> ScoreRequest:
    """Return what reads each question's labels behind its items; labels that are rows of a head have no label mass."""
    labels = TokenRows.nested("questions", [each.labels[1] for each in asked for _ in each.orders])
    return ScoreRequest(*joined, label_matrix(labels), apply_softmax=has_head, cache_salt=cache_salt)


class OwnStyle:
    """Our own prompt: `Question.text` as the last message of a conversation. See `Style`."""

    is_joint = False
    makes_tokens = False

    def __init__(self, prompter: Prompter, codes: Codes) -> None:
        self._prompter = prompter
        self._codes = codes

    def ask(self, question: Question, choice_order: ChoiceOrder, path: str) -> AskedQuestion:
        """Return a question with its labels; see `Style`."""
        return AskedQuestion(question, question.orders(choice_order), self._codes.labels(question, path))

    def prompts(self, asked: Sequence[AskedQuestion], max_characters: int) -> list[list[Prompt]]:
        """Return the prompts; see `Style`."""
        made = iter(self._prompter.prompts([text for each in asked for text in each.texts], max_characters))
        return [[cut_prompt(*next(made)) for _ in each.orders] for each in asked]

    def joined(self, asked: Sequence[AskedQuestion], context_length: int) -> Joined:
        """Questions are texts."""
        raise NotImplementedError

    def request(self, joined: Joined, asked: Sequence[AskedQuestion], cache_salt: str | None) -> ScoreRequest:
        """Return what reads the codes; see `Style`."""
        return label_request(joined, asked, cache_salt, has_head=False)
