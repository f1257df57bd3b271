"""Chat templates: from messages to the text that a model was trained on, as `transformers` renders it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from mis_core.errors import ModelError, RequestError


class ChatTemplate(msgspec.Struct, frozen=True):
    """A Jinja template with the special tokens that it may write.

    Templates come with checkpoints, so they are code of strangers: `transformers` renders them in an immutable sandbox.

    Attributes:
        source: The template.
        special_tokens: Texts of special tokens by name, such as `bos_token`.
    """

    source: str
    special_tokens: dict[str, str] = {}

    @classmethod
    def read(cls, path: str | Path, special_tokens: dict[str, str]) -> "ChatTemplate":
        """Read a template from a file.

        Raises:
            ModelError: the file cannot be read.
        """
        try:
            return cls(Path(path).read_text("utf-8-sig"), special_tokens)
        except (OSError, UnicodeDecodeError) as error:
            raise ModelError(f"The template {str(path)!r} cannot be read: {type(error).__name__}.") from None

    def render(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True, **variables: Any
    ) -> str:
        """Return the text of messages; it has its special tokens already, so none are to be added to it.

        Args:
            messages: Each with `role` and `content`.
            add_generation_prompt: End with what begins the assistant's answer.
            variables: What else the template reads, such as `enable_thinking`.

        Raises:
            RequestError: `invalid_messages`; the template refuses these messages, and says why.
        """
        # Slow to import; few requests need it.
        from jinja2 import TemplateError
        from transformers.utils.chat_template_utils import render_jinja_template

        conversations: list[Any] = [list(messages)]
        context: dict[str, Any] = {**self.special_tokens, **variables}
        try:
            (text,), _ = render_jinja_template(
                conversations,
                chat_template=self.source,
                add_generation_prompt=add_generation_prompt,
                **context,
            )
        except (TemplateError, TypeError, ValueError, LookupError, ArithmeticError, RecursionError) as error:
            reason = next(iter(str(error).splitlines()), type(error).__name__)[:200]
            message = f"The model's chat template refuses these messages: {reason}"
            raise RequestError("invalid_messages", message, "messages") from None
        return text
