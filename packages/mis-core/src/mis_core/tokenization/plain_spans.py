"""Texts of users within a prompt: what looks like a control token in them is read as text.

A chat template writes control tokens, such as `<|im_end|>`, and a text between them may spell the same. So such spans
are marked before the template renders, and the prompt is tokenised in pieces: a marked span without any added token,
and what is between spans as usual. Pieces are tokenised each by itself, so no token forms across the edge of a span.
Marks and pieces are those of `transformers` (`apply_chat_template` with `sanitize_control_tokens`), whose functions do
the work.
"""

import functools
import re
from collections.abc import Callable
from typing import Any

import tokenizers

_START, _END = "\U000f0000", "\U000f0001"  # as transformers has them: of a private plane
_MARKS = re.compile(f"[{_START}{_END}]")


MARK, SPLIT = "<|mark|>", "<|split|>"
"""What decision templates write where an answer is read, and where the text is tokenised apart."""

# Those that a user wrote are marked, so they are text.
_TEMPLATES_MARK, _TEMPLATES_SPLIT = (re.compile(f"(?<!{_START}){re.escape(each)}") for each in (MARK, SPLIT))


def without_sentinels(text: str) -> str:
    """Return a text without marks, and without any `MARK` or `SPLIT`, however they are put together."""
    text = without_marks(text)
    while (shorter := text.replace(MARK, "").replace(SPLIT, "")) != text:
        text = shorter
    return text


def parts_at_marks(prompt: str) -> list[str]:
    """Return the parts of a prompt between its `MARK`s; where it has a `SPLIT`, it will be tokenised apart."""
    return _TEMPLATES_MARK.split(_TEMPLATES_SPLIT.sub(_END, prompt))


def has_marks(text: str) -> bool:
    """Whether a text has a marked span, or a part of one."""
    return _MARKS.search(text) is not None


def without_marks(text: str) -> str:
    """Return a text without marks."""
    return _MARKS.sub("", text)


def each_text(change: Callable[[str], str], value: Any) -> Any:
    """Return a value whose texts are changed, however deep, and the names in its objects."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {each_text(change, name): each_text(change, each) for name, each in value.items()}
    return [each_text(change, each) for each in value] if isinstance(value, (list, tuple)) else value


def last_piece(text: str) -> int:
    """Return where the last piece of a text begins: behind its last span, or with it where the text ends within it."""
    start, end = text.rfind(_START), text.rfind(_END)
    return start if start > end else end + 1


class PlainSpans:
    """Marks what looks like a control token, and tokenises what is marked.

    Attributes:
        added_tokens_encoder: Ids of the added tokens by their texts; of what is none, but is marked, -1.
    """

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        """Read the added tokens of a tokenizer."""
        self._backend = backend
        self._added = [*backend.get_added_tokens_decoder().items()]
        self.added_tokens_encoder = dict.fromkeys((MARK, SPLIT), -1)
        self.added_tokens_encoder |= {token.content: number for number, token in self._added}

    def marker(self, template: str | None, sentinels: tuple[str, ...] = ()) -> Callable[[Any], Any]:
        """Return what marks the texts within a value, however deep, and the names in objects.

        Args:
            template: What a prompt is rendered by: added tokens that it writes are control tokens, too, which
                special ones always are.
            sentinels: Texts that are marked, too.
        """
        from transformers.utils import chat_template_utils as theirs  # slow to import

        written = "" if template is None else theirs._get_template_literal_text(template)
        control = tuple(
            token.content
            for _, token in self._added
            if token.special or (token.content in written and not token.content.isspace())
        )
        control += sentinels
        pattern, _ = theirs._get_control_token_patterns(control)
        return functools.partial(each_text, functools.partial(theirs.mark_control_tokens, control_tokens_re=pattern))

    def encode(self, text: str, ids: Callable[[str], list[int]], *, follows: bool = False) -> list[int]:
        """Return the ids of a text with marked spans; no special tokens are added.

        Args:
            text: The text.
            ids: Tokenises a piece as usual.
            follows: Whether it follows a mark.

        Raises:
            ValueError: a span is a control token even where it is tokenised as text.
        """
        from transformers.utils.chat_template_utils import encode_marked_chat

        return encode_marked_chat(_AsTheirs(self, ids), _END + text if follows else text)


class _AsTheirs:
    """What `encode_marked_chat` asks of a tokenizer of `transformers`."""

    def __init__(self, spans: PlainSpans, ids: Callable[[str], list[int]]) -> None:
        self.added_tokens_encoder = spans.added_tokens_encoder
        self._backend = spans._backend
        self._ids = ids

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        return self._ids(text)

    def convert_tokens_to_ids(self, token: str) -> int | None:
        return self._backend.token_to_id(token)

    def _encode_without_added_tokens(self, text: str) -> list[int]:
        backend = self._backend
        if backend.normalizer is not None:
            text = backend.normalizer.normalize_str(text)
        parts = [text]
        if backend.pre_tokenizer is not None:
            parts = [part for part, _ in backend.pre_tokenizer.pre_tokenize_str(text)]
        return [token.id for part in parts for token in backend.model.tokenize(part)]
