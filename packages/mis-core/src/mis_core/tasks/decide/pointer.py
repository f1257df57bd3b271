"""Questions to a pointer head: tokens between delimiters behind a state, and the head's rows at some of them.

Source: `encode` of `any2jev.packing` 0.1.0. A question is a branch of its own behind the state, which is what an item
is here. A state that is too long is refused, where the package cuts it.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Bool, Float32, Int32

from mis_core.config import ChoiceOrder
from mis_core.errors import RequestError
from mis_core.ragged import offsets
from mis_core.requests import EngineOutput, ScoreRequest
from mis_core.tasks.decide.asked_question import AskedQuestion, Prompt
from mis_core.tasks.decide.content import Content
from mis_core.tasks.decide.pointer_text import lines, most_characters, option_text, plain
from mis_core.tasks.decide.questions import Question
from mis_core.tasks.fields.values import check_count
from mis_core.tasks.limits import Limits
from mis_core.tokenization import Joined, Tokenizer
from mis_core.tokenization.pointer_contract import PointerContract

_NO_BEFORE_YES = [1, 0]


@dataclass(frozen=True, slots=True, eq=False)
class Branch:
    """What is read of a question in one order of its options.

    Attributes:
        tokens: All of them, `[tokens]`.
        reads: Places of the last token of each option, in the order they are read, and of the branch's last.
    """

    tokens: Int32[np.ndarray, " tokens"]
    reads: Int32[np.ndarray, " reads"]


@dataclass(frozen=True, slots=True, eq=False)
class PointedQuestion(AskedQuestion):
    """A question to a pointer head.

    Attributes:
        branches: A branch for each order.
    """

    branches: list[Branch] = field(default_factory=list)


class PointerStyle:
    """Asks as a `PointerContract` says. See `Style`."""

    is_joint = False
    makes_tokens = True

    def __init__(
        self, tokenizer: Tokenizer, contract: PointerContract, state: Content, name: str, limits: Limits
    ) -> None:
        """Tokenise the state.

        Args:
            tokenizer: The model's, whose meter counts what is tokenised.
            contract: How questions are put.
            state: What they are about.
            name: Name of the field that holds it, for errors.
            limits: What a request may ask for.

        Raises:
            RequestError: the state has more characters or tokens than are read.
        """
        self._tokenizer, self._contract, self._limits = tokenizer, contract, limits
        self._check([state], name)
        self._reads = 0
        (tokens,) = self._tokens([lines(state)], name)
        if len(tokens) >= contract.max_state:
            message = (
                f"{name} has {len(tokens)} tokens; this model's decision head reads at most {contract.max_state - 1} "
                "(max_state in any2jev.json)."
            )
            raise RequestError("context_length_exceeded", message, name)
        self._state = np.concatenate([[contract.state], tokens]).astype(np.int32)

    def ask(self, question: Question, choice_order: ChoiceOrder, path: str) -> PointedQuestion:
        """Return a question with its branches; see `Style`."""
        orders = [_NO_BEFORE_YES] if question.kind == "predicate" else question.orders(choice_order)
        values = (value for option in question.options for value in (option.value, option.description))
        self._check([question.instructions, *question.sides, *values], "questions")
        options = _options(question)
        self._reads += len(orders) * (len(options) + 1)
        most = self._limits.max_scores // self._contract.dimensions
        what = "options and questions, each once for each of its orders"
        check_count(self._reads, most, what, "questions", "too_many_labels")
        asked, *parts = self._tokens([lines(question.instructions), *options], path)
        branches = [self._branch(asked, [parts[index] for index in order]) for order in orders]
        length, most = len(branches[0].tokens), self._contract.max_branch
        if length > most:
            message = (
                f"{path} has {length} tokens with its options; this model's decision head reads at most {most} "
                "(max_branch in any2jev.json)."
            )
            raise RequestError("context_length_exceeded", message, "questions")
        if len(self._state) + length > self._limits.context_length:
            message = (
                f"{path}: state and question have {len(self._state) + length} tokens together; the context holds "
                f"{self._limits.context_length}."
            )
            raise RequestError("context_length_exceeded", message, "questions")
        labels = options, np.arange(len(options), dtype=np.int32)
        return PointedQuestion(question, orders, labels, self._contract.temperature, branches=branches)

    def prompts(self, asked: Sequence[AskedQuestion], max_characters: int) -> list[list[Prompt]]:
        """Questions have tokens, and no texts."""
        raise NotImplementedError

    def joined(self, asked: Sequence[AskedQuestion], context_length: int) -> Joined:
        """Return the state and all branches; see `Style`."""
        branches = _branches(asked)
        tokens = np.concatenate([branch.tokens for branch in branches])
        starts = offsets(np.array([len(branch.tokens) for branch in branches]))
        return Joined(self._state, tokens, starts, np.full(len(branches), len(self._state), np.int32))

    def request(self, joined: Joined, asked: Sequence[AskedQuestion], cache_salt: str | None) -> ScoreRequest:
        """Return what reads `k` at the end of each option and `q` at that of each branch; see `Style`."""
        reads = [branch.reads for branch in _branches(asked)]
        dimensions, vocab_size = self._contract.dimensions, self._limits.vocab_size
        count = sum(map(len, reads))
        lens = np.array(list(map(len, reads)), np.int32)
        first = np.full(count, vocab_size + dimensions, np.int32)
        first[np.cumsum(lens) - 1] = vocab_size
        return ScoreRequest(
            *joined,
            first[:, None] + np.arange(dimensions, dtype=np.int32),
            apply_softmax=True,
            cache_salt=cache_salt,
            read_lens=lens,
            read_at=np.concatenate(reads),
        )

    def _branch(self, asked: np.ndarray, options: Sequence[np.ndarray]) -> Branch:
        contract = self._contract
        parts = [np.array([contract.question]), asked]
        for option in options:
            parts += [np.array([contract.option]), option, np.array([contract.option_end])]
        parts.append(np.array([contract.decide]))
        lens = np.array([len(option) + 2 for option in options])
        ends = len(asked) + np.cumsum(lens)
        return Branch(np.concatenate(parts).astype(np.int32), np.append(ends, ends[-1] + 1).astype(np.int32))

    def _check(self, contents: Sequence[object], name: str) -> None:
        """Refuse values with more text than may be tokenised, before any is put together."""
        most = self._limits.max_text_characters
        check_count(sum(map(most_characters, contents)), most, "characters of text", name, "too_many_tokens")

    def _tokens(self, texts: Sequence[str], name: str) -> list[np.ndarray]:
        """Return the tokens of each text of a field, none of them a delimiter."""
        try:
            tokens, lens = self._tokenizer.encode_all(list(map(plain, texts)), add_special_tokens=False, field="text")
        except RequestError as error:
            named = re.sub(r"text\[\d+\]", lambda _: name, error.message, count=1)
            raise RequestError(error.code, named, name.partition("[")[0]) from None
        is_kept = ~np.isin(tokens, list(self._contract.delimiters))
        return [part[kept] for part, kept in zip(*(_split(each, lens) for each in (tokens, is_kept)), strict=True)]


def _split(values: np.ndarray, lens: np.ndarray) -> list[np.ndarray]:
    """Return values that lie one behind the other as so many each."""
    return np.split(values, np.cumsum(lens)[:-1])


def pointed(
    request: ScoreRequest, output: EngineOutput
) -> tuple[Float32[np.ndarray, "items labels"], Bool[np.ndarray, "items labels"]]:
    """Return how far each option of each item is pointed at, before the temperature, and where there is an option.

    It is `k` at the option's end times `q` at the item's, by the root of their dimensions. Each product is a sum by
    itself, so its bits depend on nothing else.
    """
    starts, values = request.read_starts, output.logits.astype(np.float64)
    lens = np.diff(starts)
    products = (values * np.repeat(values[starts[1:] - 1], lens, axis=0)).sum(axis=1) / np.sqrt(values.shape[1])
    is_option = np.arange(lens.max() - 1) < lens[:, None] - 1
    found = np.zeros(is_option.shape, np.float32)
    found[is_option] = np.delete(products, starts[1:] - 1)
    return found, is_option


def _branches(asked: Sequence[AskedQuestion]) -> list[Branch]:
    return [branch for each in asked if isinstance(each, PointedQuestion) for branch in each.branches]


def _options(question: Question) -> list[str]:
    """Return the texts of options; of a predicate those of yes and no."""
    match question.kind:
        case "predicate":
            return [option_text(name, side) for name, side in zip(("yes", "no"), question.sides, strict=True)]
        case "choice":
            return [option_text(option.shown, option.description) for option in question.options]
        case _:
            return [
                lines(option.value) if option.description is None else option_text(option.shown, option.description)
                for option in question.options
            ]
