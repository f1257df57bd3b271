"""Prompts as the files of a checkpoint have them, and as transformers renders them for any chat model.

Source: `prepare_inputs` and `label_token_ids` of `transformers.decision` 5.24, whose prompts and labels these are.
"""

import json
import os
import string
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

from mis_core.config import ChoiceOrder
from mis_core.errors import RequestError
from mis_core.requests import ScoreRequest
from mis_core.tasks.decide.asked_question import AskedQuestion, Prompt, cut_prompt, label_request
from mis_core.tasks.decide.codes import CODES, Labels
from mis_core.tasks.decide.content import Content
from mis_core.tasks.decide.questions import Question
from mis_core.tokenization import Joined, Tokenizer
from mis_core.tokenization.decision_contract import DecisionContract
from mis_core.tokenization.plain_spans import MARK, SPLIT, each_text, parts_at_marks, without_sentinels

_KINDS = {"predicate": "noul", "choice": "choice", "score": "score"}
_LETTERS = tuple(string.ascii_uppercase)
_WORDS = ("Yes", "No")
_EMPTY = {"role": "user", "content": ""}
_PROBE = "\u2047state\u2047"


class ContractStyle:
    """Asks as a `DecisionContract` says. See `Style`.

    Attributes:
        is_joint: Whether all questions stand in one prompt, which is read at a mark for each.
        makes_tokens: Likewise.
    """

    def __init__(
        self, tokenizer: Tokenizer, contract: DecisionContract, state: Content, field: str, vocab_size: int
    ) -> None:
        """Prepare; nothing is rendered yet.

        Args:
            tokenizer: The model's, whose meter counts what is rendered, too.
            contract: How questions are put.
            state: What they are about.
            field: Name of the field that holds it, for errors.
            vocab_size: Labels that are tokens are below it; rows of a trained head begin with it.
        """
        self._tokenizer = tokenizer
        self._contract = contract
        self._field = field
        self._found: dict[str, list[tuple[str, int] | None]] = {}
        self._beginnings: dict[str, str] = {}
        self._shared: dict[str, str] = {}  # one text for equal ones, which may be long
        self._vocab_size = vocab_size
        outer = tokenizer.chat_template if contract.in_chat else contract.template
        if outer is None:
            message = "The decision prompt transformers needs a chat template, and this model has none."
            raise RequestError("task_not_supported", message, "model")
        self.is_joint = self.makes_tokens = not contract.in_chat and contract.template.reads("questions")
        self._outer = outer
        self._mark = (
            tokenizer.spans.marker(outer.source, (MARK, SPLIT))
            if contract.sanitizes
            else partial(each_text, without_sentinels)
        )
        self._state = state if contract.in_chat and contract.sanitizes else self._mark(state)
        self._state_as_text = (
            self._state if isinstance(self._state, str) else json.dumps(self._state, ensure_ascii=False)
        )
        self._size = len(str(state))

    def ask(self, question: Question, choice_order: ChoiceOrder, path: str) -> AskedQuestion:
        """Return a question with its labels; see `Style`."""
        kind = _KINDS[question.kind]
        orders = question.orders(choice_order)
        if kind == "noul":
            orders = [[("true", "false").index(side) for side in self._contract.noul_options]]
        if self.is_joint and len(orders) > 1:
            message = f"{path}: this model reads all questions in one prompt; options keep the given order."
            raise RequestError("unsupported_parameter", message, "questions")
        labels = self._labels(kind, len(orders[0]), path)
        return AskedQuestion(question, orders, labels, self._contract.temperature_of(kind, len(orders[0])))

    def joined(self, asked: Sequence[AskedQuestion], context_length: int) -> Joined:
        """Return the one prompt of all questions.

        Each is a segment of the token before its mark, which sees all that is before.

        Args:
            asked: Questions, at least one.
            context_length: Most tokens of the prompt.

        Raises:
            RequestError: the template refuses them, they are too long, or a text has a token that the model lacks.
        """
        described = [_described(each, each.orders[0]) for each in asked]
        self._tokenizer.meter.count(self._size + len(str(described)))
        variables = {"state": self._state, "questions": self._mark(described), "question": self._mark(described[0])}
        prompt = self._rendered(lambda: self._outer.render([_EMPTY], enable_thinking=False, **variables))
        *parts, _ = parts_at_marks(prompt)
        if len(parts) != len(asked):
            message = f"This model's decision template has {len(parts)} marks for {len(asked)} questions, not one each."
            raise RequestError("task_not_supported", message, "model")
        tokens, lens = self._tokenizer.encode_parts(parts, field=self._field)
        ends = np.cumsum(lens)
        if not lens[0]:
            message = "This model's decision template has a mark before any text."
            raise RequestError("task_not_supported", message, "model")
        if len(tokens) > context_length:
            message = f"The prompt of all questions has {len(tokens)} tokens; the context holds {context_length}."
            raise RequestError("context_length_exceeded", message, "questions")
        before = (ends - 1).astype(np.int32)
        return Joined(tokens, tokens[before], np.arange(len(asked) + 1, dtype=np.int32), before)

    def request(self, joined: Joined, asked: Sequence[AskedQuestion], cache_salt: str | None) -> ScoreRequest:
        """Return what reads the labels, or the rows of a head; see `Style`."""
        return label_request(joined, asked, cache_salt, has_head=bool(self._contract.head_offsets))

    def _rendered(self, render: Callable[[], str]) -> str:
        try:
            return render()
        except RequestError as error:
            raise RequestError(f"invalid_{self._field}", error.message, self._field) from None

    def prompts(self, asked: Sequence[AskedQuestion], max_characters: int) -> list[list[Prompt]]:
        """Return the prompts; see `Style`."""
        described = [[_described(each, order) for order in each.orders] for each in asked]
        # What a stranger's template does with a state may depend on the question; that of transformers only writes it.
        written = self._written_state() if self._contract.in_chat else None
        repeating = sum(
            written is None or _has_probe(order) or _PROBE not in self._beginning(order["type"])
            for each in described
            for order in each
        )
        self._check_repeated(max(self._size, len(written or "")), repeating, max_characters)
        return [[self._cut(order, written) for order in each] for each in described]

    def _cut(self, described: dict[str, Any], written: str | None) -> Prompt:
        """Render a prompt, and cut it behind the state; `written` is the state where prompts may be made of it."""
        beginning = self._beginning(described["type"])
        if written is not None and not _has_probe(described):
            shared, rest = cut_prompt(self._prompt(described, _PROBE), beginning)
            if shared not in self._shared:
                self._shared[shared] = shared.replace(_PROBE, written)
            return Prompt(self._shared[shared], rest.replace(_PROBE, written))
        prompt = self._prompt(described, self._state)
        before, has_state, after = beginning.partition(_PROBE)
        if has_state:
            beginning = f"{before}{self._state_as_text}{after}"
            if not prompt.startswith(beginning):  # it is written otherwise: up to what comes behind it
                at = prompt.find(after, len(before)) if after and prompt.startswith(before) else -1
                beginning = before if at < 0 else prompt[: at + len(after)]
        shared, rest = cut_prompt(prompt, beginning)
        return Prompt(self._shared.setdefault(shared, shared), rest)

    def _beginning(self, kind: str) -> str:
        """Return what prompts of a kind of question begin with whatever the question is, with a probe for the state.

        It is what the prompts of two questions without a common text have in common; empty if the template refuses
        them.
        """
        if kind not in self._beginnings:
            try:
                probes = [self._prompt(self._probe_question(kind, text), _PROBE) for text in ("\u2048 1", "1 \u2049")]
                self._beginnings[kind] = os.path.commonprefix(probes)  # noqa: RUF071 - of characters
            except RequestError:
                self._beginnings[kind] = ""
        return self._beginnings[kind]

    def _probe_question(self, kind: str, text: str) -> dict[str, Any]:
        """Return a question of a kind, as templates get it, whose every text is the given one."""
        options = {"noul": list(self._contract.noul_options), "score": ["0", "1"]}.get(kind, [f"{text} A", f"{text} B"])
        usual = _WORDS if kind == "noul" else _LETTERS
        labels = list(self._contract.labels.get(kind) or usual)[:2]
        texts = {"name": text, "type": kind, "instructions": text, "descriptions": [text, text]}
        return texts | {"options": options, "labels": labels}

    def _written_state(self) -> str | None:
        """Return what prompts have where the probe stands in place of the state; None if that is not the difference."""
        question = self._probe_question("noul", "\u2048 1")
        probe, whole = (self._prompt(question, state) for state in (_PROBE, self._state))
        before, *after = probe.split(_PROBE)
        if len(after) != 1 or len(before) + len(after[0]) > len(whole):
            return None
        if not (whole.startswith(before) and whole.endswith(after[0])):
            return None
        return whole[len(before) : len(whole) - len(after[0])]

    def _check_repeated(self, size: int, count: int, most: int) -> None:
        if size * count > most:
            message = (
                f"{count} questions repeat the {self._field} in this model's prompts: {size * count} characters; at "
                f"most {most} are allowed. Ask fewer questions at a time."
            )
            raise RequestError("too_many_tokens", message, "questions")

    def _prompt(self, described: dict[str, Any], state: Content) -> str:
        """Return a prompt about a state up to where the answer is read."""
        size = len(_PROBE) if state is _PROBE else self._size
        self._tokenizer.meter.count(size + len(str(described)))

        def render() -> str:
            if not self._contract.in_chat:
                variables: dict[str, Any] = {"state": state, "question": self._mark(described)}
                return self._outer.render([_EMPTY], enable_thinking=False, **variables)
            text = self._contract.template.render([], add_generation_prompt=False, state=state, question=described)
            text = self._mark(text) if self._contract.sanitizes else text
            return self._outer.render([{"role": "user", "content": text}], enable_thinking=False)

        before, *others = parts_at_marks(self._rendered(render))
        if len(others) > 1:
            message = "This model's decision template has several marks for a question, which is not supported yet."
            raise RequestError("task_not_supported", message, "model")
        return before

    def _labels(self, kind: str, wanted: int, path: str) -> Labels:
        if self._contract.head_offsets:
            return self._rows(kind, wanted, path)
        if kind not in self._found:
            usual = _WORDS if kind == "noul" else _LETTERS
            found = self._tokens(self._contract.labels.get(kind) or usual)
            self._found[kind] = [each for each in found if each is not None] if self._contract.as_llama_cpp else found
        found = self._found[kind]
        if self._contract.in_chat and wanted > len(found) and kind == "choice" and kind not in self._contract.labels:
            more = self._tokens(tuple(chain.from_iterable(CODES[1:])))
            found += [each for each in more if each is not None]
        ids = [each and each[1] for each in found[:wanted]]
        if len(found) < wanted or None in ids or len(set(ids)) < wanted:
            message = f"{path}: this model has no {wanted} labels that are distinct single tokens; it has {len(found)}."
            raise RequestError("too_few_label_tokens", message, "questions")
        kept = [each for each in found[:wanted] if each is not None]
        return [text for text, _ in kept], np.array([token for _, token in kept], np.int32)

    def _rows(self, kind: str, wanted: int, path: str) -> Labels:
        """Return the labels of a trained head, whose rows stand behind the last token."""
        usual = _WORDS if kind == "noul" else _LETTERS
        texts = list(self._contract.labels.get(kind) or usual)
        offset = self._contract.head_offsets[kind]
        most = min(len(texts), self._contract.head_rows - offset)
        if wanted > most:
            message = f"{path}: this model's decision head has {most} rows for such a question, not {wanted}."
            raise RequestError("too_few_label_tokens", message, "questions")
        first = self._vocab_size + offset
        return texts[:wanted], np.arange(first, first + wanted, dtype=np.int32)

    def _tokens(self, texts: Sequence[str]) -> list[tuple[str, int] | None]:
        """Return each text with the one token that it is by itself, or None."""
        ids, lens = self._tokenizer.within(None).encode_all(texts, add_special_tokens=False)
        if not len(ids):
            return [None] * len(texts)
        last = ids[np.cumsum(lens) - 1]
        is_label = (lens == 1) & (last < self._vocab_size) & (last != self._tokenizer.unknown_id)
        return [
            (text, int(token)) if single else None for text, token, single in zip(texts, last, is_label, strict=True)
        ]


def _has_probe(described: dict[str, Any]) -> bool:
    return _PROBE in str(described)


def _described(asked: AskedQuestion, order: Sequence[int]) -> dict[str, Any]:
    """Return a question as decision templates read it."""
    question = asked.question
    match question.kind:
        case "predicate":
            options, descriptions = ("true", "false"), question.sides
        case "choice":
            options = tuple(option.shown for option in question.options)
            descriptions = tuple(option.description for option in question.options)
        case _:
            options = tuple(map(str, range(len(question.options))))
            descriptions = tuple(
                option.value if option.description is None else f"{option.shown}: {option.description}"
                for option in question.options
            )
    return {
        "name": question.name or "",
        "type": _KINDS[question.kind],
        "instructions": question.instructions,
        "options": [options[index] for index in order],
        "labels": asked.labels[0],
        "descriptions": [descriptions[index] for index in order],
    }
