"""What one request may ask for."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Integer

from mis_core.checkpoints import NO_SIGNS, Signs
from mis_core.config import Activation, ChoiceOrder
from mis_core.errors import RequestError
from mis_core.tokenization import MAX_CHARACTERS

_ONLY = {
    "decide": "This model has nothing but a decision head; it decides, and has no other task.",
    "token_classify": "This model has a head that labels tokens: it serves POST /v1/token_classify, and no other task.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one request may ask for.

    Attributes:
        context_length: Most tokens of query and item together.
        vocab_size: Token ids are below this; `vocab_size` of the model's config.
        max_items: Most items.
        max_labels: Most labels of an item.
        max_request_tokens: Most tokens of the query, once, and of every item.
        max_text_characters: Most characters that are tokenised: more than the texts have where query and items cannot
            be tokenised apart.
        max_sequences: Most answers that are written, or drawn several to a prompt.
        max_scores: Most items times labels of the longest list: what a request and its reply hold in memory.
        delimiter: Token put between query and item, or None.
        layouts: Whether requests may choose their layout, by the fields of `LaidOutScoreBody`.
        head_labels: Names of the rows of a classification head, in order; empty for language models. Label ids are
            then rows of the head.
        head_activation: What makes probabilities of its values.
        architecture: Name of the model's class in `config.json`, such as `Qwen3ForCausalLM`.
        only_task: The one task that the model's head is for; None: that depends on the task.
        signs: What the checkpoint says it was made for.
        choice_order: In which order decisions read options unless a request says otherwise.
        rerank_recipe: Name of the recipe of rerank that the operator chose; None: by these signs.
        identified: Whether parsed requests say what calibrations they may have.
    """

    context_length: int
    vocab_size: int
    max_items: int = 20_000
    max_labels: int = 1024
    max_request_tokens: int = 2_000_000
    max_text_characters: int = MAX_CHARACTERS
    max_sequences: int = 4096
    max_scores: int = 1 << 21
    delimiter: int | None = None
    layouts: bool = False
    head_labels: tuple[str, ...] = ()
    head_activation: Activation = "softmax"
    architecture: str = ""
    only_task: Literal["decide", "token_classify"] | None = None
    signs: Signs = NO_SIGNS
    choice_order: ChoiceOrder = "given"
    rerank_recipe: str | None = None
    identified: bool = False

    @property
    def max_work(self) -> int:
        """Most that tokenising a request may cost, as `Meter` counts it.

        A text is read up to four times: by itself, up to the place where it may be cut, to be shortened, and with what
        follows. The rest is for what tasks tokenise by themselves, such as their prompts and codes.
        """
        return 4 * self.max_text_characters + (1 << 16)

    def why_not(self, task: str) -> str | None:
        """Return why the model has a head for another task only; None if it has not."""
        return None if self.only_task is None or self.only_task == task else _ONLY[self.only_task]

    def check_tokens(self, count: int, what: str, param: str) -> None:
        """Refuse more tokens than a request may have; the message says what has them, such as `The prompts`.

        Raises:
            RequestError: `too_many_tokens`.
        """
        if count > self.max_request_tokens:
            message = f"{what} have {count} tokens; at most {self.max_request_tokens} are allowed."
            raise RequestError("too_many_tokens", message, param)

    def check_lens(self, lens: Integer[np.ndarray, " texts"], param: str) -> None:
        """Refuse texts of a field that have more tokens than the context holds, each or together than a request may.

        Raises:
            RequestError: `context_length_exceeded` or `too_many_tokens`.
        """
        longest = int(lens.argmax())
        if lens[longest] > self.context_length:
            message = f"{param}[{longest}] has {lens[longest]} tokens; the context holds {self.context_length}."
            raise RequestError("context_length_exceeded", message, param)
        self.check_tokens(int(lens.sum()), f"The {param}s", param)
