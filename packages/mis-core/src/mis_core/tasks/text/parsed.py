"""What chats, completions and generations share: what the engine computes for them, and what scores say."""

from dataclasses import dataclass

from mis_core.requests import NewToken, ScoreRequest
from mis_core.tasks.text.sequences import AnswerOptions, Sequences
from mis_core.tasks.usage import Usage


@dataclass(frozen=True, slots=True, eq=False)
class ParsedText:
    """What a task that answers with text has made of the fields of a request.

    Attributes:
        options: How answers are asked for.
        requests: What the engine scores: what is asked of prompts, and answers of at most one token.
        sequences: What the engine writes: each prompt's draws, then those of the next. None where an answer has at most
            one token, which `requests` draw.
    """

    options: AnswerOptions
    requests: tuple[ScoreRequest, ...]
    sequences: Sequences

    @property
    def num_drawn(self) -> int:
        """Tokens that scores draw."""
        return sum(request.num_items for request in self.requests if request.sampling is not None)

    @property
    def num_sequences(self) -> int:
        """Answers that are written, or drawn several to a prompt."""
        return len(self.sequences) or (self.num_drawn if self.options.draws > 1 else 0)


@dataclass(frozen=True, slots=True, eq=False)
class TextResult:
    """What scores say of a request that is answered with text.

    Log-probabilities are natural, of the model's own distribution: before temperature, bias and `top_p`.

    Attributes:
        tokens: The only token of each answer, those to the first prompt, then those to the next; none where answers are
            written, or have no tokens.
        usage: Token counts; a beginning counts in each prompt that has it.
    """

    tokens: list[NewToken]
    usage: Usage
