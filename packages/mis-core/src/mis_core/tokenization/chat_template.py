"""Chat templates: from messages to the text that a model was trained on, as `transformers` renders it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import msgspec

from mis_core.errors import ModelError, RequestError

_REASON_CHARACTERS = 200


class ChatTemplate(msgspec.Struct, frozen=True):
    """A Jinja template with the special tokens that it may write.

    Templates come with checkpoints, so they are code of strangers: `transformers` renders them in an immutable sandbox.
    The sandbox bounds neither time nor memory, and a template may raise any exception.

    Attributes:
        source: The template.
        special_tokens: Texts of special tokens by name, such as `bos_token`.
        option: The option whose file this is, such as `chat_template`; None for the checkpoint's own.
        fault: Why it cannot be compiled; None if it can be, or if nobody has tried.
    """

    source: str
    special_tokens: dict[str, str] = {}
    option: str | None = None
    fault: str | None = None

    @classmethod
    def read(cls, path: str | Path, special_tokens: dict[str, str], option: str | None = None) -> "ChatTemplate":
        """Read a template from a file.

        Raises:
            ModelError: the file cannot be read.
        """
        try:
            return cls(Path(path).read_text("utf-8-sig"), special_tokens, option)
        except (OSError, UnicodeDecodeError) as error:
            raise ModelError(f"The template {str(path)!r} cannot be read: {type(error).__name__}.") from None

    @property
    def identity(self) -> list[Any]:
        """What its texts depend on, wherever it is rendered."""
        return [self.source, self.special_tokens]

    def find_fault(self) -> str | None:
        """Compile the template, which may compute much of it; return why it cannot be compiled, or None."""
        from transformers.utils.chat_template_utils import render_jinja_template

        try:
            render_jinja_template([], chat_template=self.source)
        except Exception as error:
            return reason_of(error)
        return None

    def reads(self, variable: str) -> bool:
        """Whether the template reads a variable of this name."""
        from transformers.utils.chat_template_utils import _get_template_variables

        return variable in _get_template_variables(self.source)

    def with_fault(self, fault: str | None) -> Self:
        """Return the template as one that cannot be compiled; None: as one that can be.

        Raises:
            ModelError: it cannot be, and an option names its file.
        """
        if fault is not None and self.option is not None:
            flag = "--" + self.option.replace("_", "-")
            raise ModelError(f"The template of {flag} cannot be compiled: {fault}")
        return msgspec.structs.replace(self, fault=fault)

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
        try:
            return self.unguarded(messages, add_generation_prompt=add_generation_prompt, **variables)
        except Exception as error:
            raise refused(reason_of(error)) from None

    def unguarded(self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool, **variables: Any) -> str:
        """Return what `render` does, or raise whatever the template raises."""
        # Slow to import; few requests need it.
        from transformers.utils.chat_template_utils import render_jinja_template

        conversations: list[Any] = [list(messages)]
        context: dict[str, Any] = {**self.special_tokens, **variables}
        (text,), _ = render_jinja_template(
            conversations, chat_template=self.source, add_generation_prompt=add_generation_prompt, **context
        )
        text.encode()  # a lone surrogate is no character, and no tokenizer takes it
        return text


def refused(reason: str) -> RequestError:
    """Return the error of messages that a template cannot render."""
    return RequestError("invalid_messages", f"The model's chat template refuses these messages: {reason}", "messages")


def reason_of(error: Exception) -> str:
    """Return the first line of what a template raised, as one that can be shown."""
    try:
        reason = next(iter(str(error).splitlines()), "")
    except Exception:
        reason = ""
    if isinstance(error, UnicodeEncodeError):
        reason = "it writes half of a character, a lone surrogate."
    if isinstance(error, MemoryError):
        reason = "it needs more memory than there is."
    reason = reason.encode("utf-8", "backslashreplace").decode()
    return (reason or f"{type(error).__name__}.")[:_REASON_CHARACTERS]
