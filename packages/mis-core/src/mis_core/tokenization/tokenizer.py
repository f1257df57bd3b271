"""The model's tokenizer, with its templates: read from files, and handed on to other processes."""

import copy
import hashlib
import logging
from pathlib import Path
from typing import Self

import msgspec
import tokenizers

from mis_core.checkpoints import Checkpoint, open_checkpoint, open_described
from mis_core.checkpoints.text_settings import text_settings
from mis_core.config import RERANK_RECIPES, EngineConfig
from mis_core.errors import ModelError
from mis_core.tokenization.chat_template import ChatTemplate
from mis_core.tokenization.decision_contract import DecisionContract
from mis_core.tokenization.encoder import is_failure_of_library
from mis_core.tokenization.pointer_contract import PointerContract
from mis_core.tokenization.text_tokenizer import TextTokenizer

logger = logging.getLogger(__name__)


class _Stored(msgspec.Struct):
    """What `to_json` writes."""

    tokenizer: str
    chat_template: ChatTemplate | None
    end_ids: frozenset[int] = frozenset()
    rerank_template: ChatTemplate | None = None
    vocabulary_size: int | None = None
    decision: DecisionContract | PointerContract | None = None


class Tokenizer(TextTokenizer):
    """A model's tokenizer, and how its prompts are made.

    Attributes:
        chat_template: How messages become text; None if the model has no template.
        end_ids: Tokens with which an answer ends.
        rerank_template: How a query and a document become text, if a file says so.
        decision: How decisions are asked, if the checkpoint or an option says so.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        chat_template: ChatTemplate | None = None,
        end_ids: frozenset[int] = frozenset(),
        rerank_template: ChatTemplate | None = None,
        decision: DecisionContract | PointerContract | None = None,
    ) -> None:
        """Wrap a fast tokenizer; truncation and padding it was saved with are switched off."""
        super().__init__(backend)
        self.chat_template = chat_template
        self.end_ids = end_ids
        self.rerank_template = rerank_template
        self.decision = decision

    @classmethod
    def of(cls, config: EngineConfig) -> Self:
        """Read the tokenizer of a model, with the templates that were chosen; it refuses ids that the model lacks.

        Args:
            config: Names local files only, as `resolve` returns it.

        Raises:
            ModelError: a file is missing or broken; it is named.
        """
        most = config.max_checkpoint_file_bytes
        model = open_described(config)
        stored = model if config.tokenizer == config.model else open_checkpoint(config.tokenizer, most)
        loaded = cls.from_pretrained(stored, config.chat_template, config.rerank_file)
        special_tokens = {} if loaded.chat_template is None else loaded.chat_template.special_tokens
        rows = text_settings(model.settings()).get("vocab_size")
        if not isinstance(rows, int):
            return loaded  # such a model is refused where its weights are loaded
        if pointer := None if config.decision_head is None else model.decision().pointer:
            loaded.decision = PointerContract.of(pointer, loaded._backend, rows, str(config.decision_head))
        else:
            loaded.decision = DecisionContract.chosen(config, model, special_tokens)
        beyond = sum(token >= rows for token in loaded._backend.get_vocab().values())
        if beyond:
            logger.warning(
                "%d of the tokenizer's %d tokens are not in the model, whose embedding has %d rows. Texts with such a "
                "token are refused.",
                beyond,
                loaded.vocab_size,
                rows,
            )
        return loaded.within(rows)

    @classmethod
    def from_pretrained(
        cls,
        path: str | Path | Checkpoint,
        chat_template: str | Path | None = None,
        rerank_template: str | Path | None = None,
    ) -> Self:
        """Read the tokenizer of a model.

        Args:
            path: The checkpoint: a directory, or a GGUF file.
            chat_template: File with a chat template to use instead of the model's own.
            rerank_template: File with a template of rerank prompts.

        Raises:
            ModelError: a file is missing or broken; it is named.
        """
        checkpoint = open_checkpoint(path)
        stored = checkpoint.tokenizer()
        special_tokens, own = stored.special_tokens, stored.chat_template
        rerank = None if rerank_template is None else _rerank_template(rerank_template, special_tokens)
        if chat_template is not None:
            chat = ChatTemplate.read(chat_template, special_tokens, "chat_template")
        else:
            chat = None if own is None else ChatTemplate(own.removeprefix("\ufeff"), special_tokens)  # no part of it
        try:
            return cls(stored.backend, chat, stored.end_ids, rerank)
        except BaseException as error:
            if not is_failure_of_library(error):
                raise
            raise ModelError(f"{checkpoint.path}: the tokenizer fails on a text of one letter: {error}") from None

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what `to_json` has written: quickly, without `transformers`."""
        stored = msgspec.json.decode(text, type=_Stored)
        backend = tokenizers.Tokenizer.from_str(stored.tokenizer)
        read = cls(backend, stored.chat_template, stored.end_ids, stored.rerank_template, stored.decision)
        return read.within(stored.vocabulary_size)

    @property
    def digest(self) -> str:
        """A digest of what makes tokens of texts, without templates."""
        return hashlib.sha256(self._backend.to_str().encode()).hexdigest()[:32]

    @property
    def decision_template(self) -> ChatTemplate | None:
        """The template by which decisions are asked, if they are asked by one."""
        return self.decision.template if isinstance(self.decision, DecisionContract) else None

    def to_json(self) -> str:
        """Write the tokenizer as it is."""
        templates = self.chat_template, self.end_ids, self.rerank_template
        stored = _Stored(self._backend.to_str(), *templates, self.vocabulary.size, self.decision)
        return msgspec.json.encode(stored).decode()

    def with_faults(self, chat: str | None, rerank: str | None, decision: str | None = None) -> Self:
        """Return the same tokenizer with what is wrong with its templates; None: nothing is.

        Raises:
            ModelError: a template that an option names, or that of decisions, cannot be compiled.
        """
        if decision is not None:
            raise ModelError(
                f"The template of decisions cannot be compiled: {decision} --decision-prompt mis serves the model "
                "without it."
            )
        known = copy.copy(self)
        if self.chat_template is not None:
            known.chat_template = self.chat_template.with_fault(chat)
        if self.rerank_template is not None:
            known.rerank_template = self.rerank_template.with_fault(rerank)
        return known

    def compiled(self) -> Self:
        """Return `with_faults`, having compiled the templates in this process; raises the same."""
        faults = [
            None if template is None else template.find_fault()
            for template in (self.chat_template, self.rerank_template, self.decision_template)
        ]
        return self.with_faults(*faults)


def _rerank_template(path: str | Path, special_tokens: dict[str, str]) -> ChatTemplate:
    """Read a template of rerank prompts; an error says which names are none of a file."""
    try:
        return ChatTemplate.read(path, special_tokens, "rerank_template")
    except ModelError as error:
        names = ", ".join(RERANK_RECIPES)
        raise ModelError(f"{error.message} --rerank-template takes a file, or one of {names}.") from None
