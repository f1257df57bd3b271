"""How a checkpoint wants decisions asked: `decision.json` and `decision_template.jinja`, as transformers defines them.

Source: `transformers.decision` 5.24. Its `prepare_inputs` needs PyTorch, so `tasks.decide.contract` renders.
"""

import math
from typing import Any, Self

import msgspec

from mis_core.checkpoints import Checkpoint
from mis_core.checkpoints.decision_files import KINDS, converted, warn_of_unknown
from mis_core.config import EngineConfig
from mis_core.errors import ModelError
from mis_core.tokenization.chat_template import ChatTemplate

SETTINGS_FILE, TEMPLATE_FILE = "decision.json", "decision_template.jinja"

_BANDS = (("2", 2), ("3_5", 5), ("6_10", 10), ("11", math.inf))  # of llama.cpp, by the number of options
_SIDES = ("true", "false")


class _Settings(msgspec.Struct, frozen=True):
    """What `decision.json` holds."""

    labels: dict[str, list[str]] = {}
    temperature: dict[str, float] = {}
    chat_template: str | None = None
    noul_options: tuple[str, ...] = _SIDES
    sanitize_control_tokens: bool = True
    adapter: str | None = None


class DecisionContract(msgspec.Struct, frozen=True, tag="prompt"):
    """How questions are put, and what answers them.

    Attributes:
        template: Renders a state and a question.
        in_chat: Whether what it renders is a message of the user, which the model's chat template renders; otherwise it
            is the whole prompt.
        labels: Labels of options by the kind of question; of other kinds those that transformers has by default.
        temperature: What logits are divided by, by the kind of question, or by it and the number of options; 1 of
            others.
        noul_options: `true` and `false` in the order in which the template gets them.
        sanitizes: Whether what looks like a control token in a request is read as text.
        as_llama_cpp: Whether labels that are no single token are passed over, not refused, and temperatures may go by
            the number of options.
        head_offsets: By kind of question the row of a trained head that its first option has; empty where labels are
            tokens.
        head_rows: Rows of that head.
    """

    template: ChatTemplate
    in_chat: bool
    labels: dict[str, list[str]] = {}
    temperature: dict[str, float] = {}
    noul_options: tuple[str, ...] = _SIDES
    sanitizes: bool = True
    as_llama_cpp: bool = False
    head_offsets: dict[str, int] = {}
    head_rows: int = 0

    def temperature_of(self, kind: str, options: int) -> float:
        """Return what logits of a question of this kind with so many options are divided by."""
        band = next(name for name, most in _BANDS if options <= most)
        own = self.temperature.get(f"{kind}.{band}") if self.as_llama_cpp else None
        return self.temperature.get(kind, 1.0) if own is None else own

    @classmethod
    def chosen(cls, config: EngineConfig, checkpoint: Checkpoint, special_tokens: dict[str, str]) -> Self | None:
        """Return the one that an option names, or else that of the checkpoint; None means our own prompt.

        Raises:
            ModelError: a file is broken, or asks for what is not there; it is named.
        """
        match config.decision_prompt:
            case "mis":
                return None
            case "transformers":
                return cls.generic()
            case None:
                return cls.of_checkpoint(checkpoint, special_tokens)
            case path:
                return cls.of_file(path, special_tokens)

    @classmethod
    def generic(cls) -> Self:
        """Return the one that transformers has for any chat model."""
        return cls._of(_Settings(), None, {}, SETTINGS_FILE)

    @classmethod
    def of_file(cls, path: str, special_tokens: dict[str, str]) -> Self:
        """Return one with a template from a file.

        Raises:
            ModelError: the file cannot be read.
        """
        return cls(ChatTemplate.read(path, special_tokens, "decision_prompt"), in_chat=False)

    @classmethod
    def of_checkpoint(cls, checkpoint: Checkpoint, special_tokens: dict[str, str]) -> Self | None:
        """Return the one that a checkpoint brings; None if it brings none.

        Raises:
            ModelError: a file is broken, or asks for what is not there; it is named.
        """
        stored = checkpoint.decision()
        if stored.settings is None and stored.template is None and stored.head is None:
            return None
        where = f"{checkpoint.path}: {stored.source or SETTINGS_FILE}"
        given = stored.settings or {}
        warn_of_unknown(given, _Settings, where)
        settings = converted(given, _Settings, where)
        contract = cls._of(settings, stored.template, special_tokens, where)
        contract = msgspec.structs.replace(contract, as_llama_cpp=stored.as_llama_cpp)
        if stored.head is None:
            return contract
        return msgspec.structs.replace(contract, head_offsets=dict(stored.head.offsets), head_rows=stored.head.rows)

    @classmethod
    def _of(cls, settings: _Settings, template: str | None, special_tokens: dict[str, str], where: str) -> Self:
        if sorted(settings.noul_options) != sorted(_SIDES):
            raise ModelError(f"{where}: noul_options must list true and false, in their order.")
        if not all(0 < value < math.inf for value in settings.temperature.values()):
            raise ModelError(f"{where}: a temperature must be a number above 0.")
        source = settings.chat_template if template is None else template
        common: dict[str, Any] = {
            "labels": {kind: settings.labels[kind] for kind in KINDS if settings.labels.get(kind)},
            "temperature": settings.temperature,
            "noul_options": settings.noul_options,
            "sanitizes": settings.sanitize_control_tokens,
        }
        if source is not None:
            return cls(ChatTemplate(source, special_tokens), in_chat=False, **common)
        from transformers.decision.template_utils import DECISION_PROMPT  # slow to import

        return cls(ChatTemplate(DECISION_PROMPT), in_chat=True, **common)
