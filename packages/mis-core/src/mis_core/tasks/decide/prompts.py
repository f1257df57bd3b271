"""Prompts of decisions: a conversation with a question as its last message, up to where the answer begins.

The questions of a request share the conversation. It is rendered once, with a probe in place of a question; where the
template writes questions as they are, every prompt is then known.
"""

import os
from collections.abc import Callable, Sequence

from mis_core.errors import RequestError
from mis_core.tasks.decide.conversation import Message
from mis_core.tasks.decide.questions import BEGIN
from mis_core.tokenization import Tokenizer
from mis_core.tokenization.chat_template import ChatTemplate
from mis_core.tokenization.plain_spans import without_marks

_PROBE, _OTHER_PROBE = f"{BEGIN}\u2047?", f"{BEGIN}\u2048!"  # questions that have nothing in common
_TAIL_CHARACTERS = 64


class Prompter:
    """Makes the prompts of a conversation.

    The model's template renders the messages, with thinking switched off, and then the question as a message of the
    user. A template that refuses this, as some do where roles do not alternate, renders one message of the user:
    the messages as a transcript, an empty line, and the question. Without a template, that message and `Answer:`
    are the prompt.

    Attributes:
        lead: What comes between a prompt and its answer: a space where the template writes one there, else nothing.
    """

    def __init__(self, tokenizer: Tokenizer, conversation: Sequence[Message], field: str) -> None:
        """Render the conversation once.

        Args:
            tokenizer: The model's, whose meter counts what is rendered, too.
            conversation: The messages.
            field: Name of the field that the messages came from, for errors.
        """
        template, meter = tokenizer.chat_template, tokenizer.meter
        # What looks like a control token in them is read as text: see `plain_spans`.
        self._mark = tokenizer.spans.marker(None if template is None else template.source)
        conversation = [Message(role=each["role"], content=self._mark(each["content"])) for each in conversation]
        self._field = field
        self._size = sum(len(message["content"]) for message in conversation)
        self._messages = len(conversation)
        self._meter = meter
        self._make: Callable[[str], str]
        if template is None:
            above = _transcript(conversation)
            self.lead = " "
            self._make = lambda text: f"{above}\n\n{text}\n\nAnswer:"
            self._probed = self._render(_PROBE)
            return
        self.lead = _lead(template)
        self._make = lambda text: _rendered(template, [*conversation, Message(role="user", content=text)])
        try:
            self._probed = self._render(_PROBE)
        except RequestError:
            above = _transcript(conversation)
            self._make = lambda text: _rendered(template, [Message(role="user", content=f"{above}\n\n{text}")])
            self._probed = self._render(_PROBE)

    def _render(self, text: str) -> str:
        self._meter.count(self._size + len(text), self._messages + 1)
        try:
            return self._make(text)
        except RequestError as error:  # of messages, which is another field
            raise RequestError(f"invalid_{self._field}", error.message, self._field) from None

    def tail(self, ending: str) -> str:
        """Return the last characters of prompts whose questions end like this."""
        return without_marks(self._render(BEGIN + ending))[-_TAIL_CHARACTERS:]

    def prompts(self, questions: Sequence[str], max_characters: int) -> list[tuple[str, str]]:
        """Return the prompt of each question, with the beginning that those of all questions have.

        Args:
            questions: Texts of questions, at least one.
            max_characters: Most that are rendered where each prompt must be rendered for itself.

        Raises:
            RequestError: `too_many_tokens`.
        """
        before, _, after = self._probed.rpartition(_PROBE)
        questions = [self._mark(question) for question in questions]
        longest = max(questions, key=len)
        if self._render(longest) == before + longest + after:
            return [(before + question + after, before) for question in questions]
        characters = self._size * len(questions)
        if characters > max_characters:
            message = (
                f"This model's chat template changes questions, so {len(questions)} of them repeat the input: "
                f"{characters} characters; at most {max_characters} are allowed. Ask fewer questions at a time."
            )
            raise RequestError("too_many_tokens", message, "questions")
        shared = os.path.commonprefix([self._probed, self._render(_OTHER_PROBE)])  # noqa: RUF071 - of characters
        return [(self._render(question), shared) for question in questions]


def _rendered(template: ChatTemplate, messages: list[Message], *, asks: bool = True) -> str:
    return template.render(messages, add_generation_prompt=asks, enable_thinking=False)


def _transcript(conversation: Sequence[Message]) -> str:
    """Return a conversation as one text: a single message of the user as it is, else each with its role before it."""
    if len(conversation) == 1 and conversation[0]["role"] == "user":
        return conversation[0]["content"]
    return "\n\n".join(f"{message['role'].capitalize()}: {message['content']}" for message in conversation)


def _lead(template: ChatTemplate) -> str:
    """Return the space that a template writes before an answer, as Llama 2's does, or nothing."""
    asked = [Message(role="user", content=_PROBE)]
    try:
        begin = _rendered(template, asked)
        answered = _rendered(template, [*asked, Message(role="assistant", content=_PROBE)], asks=False)
    except RequestError:
        return ""
    return " " if answered.startswith(f"{begin} {_PROBE}") else ""
