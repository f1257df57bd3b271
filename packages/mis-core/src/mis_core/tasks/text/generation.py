"""Generation in Python: the fields of a request, and its result."""

from collections.abc import Mapping
from dataclasses import dataclass

from mis_core.errors import RequestError
from mis_core.requests import MAX_TOP_TOKENS
from mis_core.tasks.fields.openai import read_whole
from mis_core.tasks.fields.values import check_names, read_optional_text
from mis_core.tasks.limits import Limits
from mis_core.tasks.served import check_task
from mis_core.tasks.text.parsed import ParsedText
from mis_core.tasks.text.prompt_field import read_prompts, read_special, tokenize_prompts
from mis_core.tasks.text.sampling import SAMPLING_FIELDS, read_draws, read_sampling, read_stops
from mis_core.tasks.text.sequences import NEW_TOKENS, AnswerOptions, check_sequences, sequences_behind
from mis_core.tasks.text.writing import GeneratedChoice, Writing
from mis_core.tasks.usage import Usage
from mis_core.tokenization import Tokenizer

FIELDS = ("prompt", "max_new_tokens", *SAMPLING_FIELDS, "logprobs", "cache_salt", "add_special_tokens")
"""Every field of a request."""


@dataclass(frozen=True, slots=True, eq=False)
class GenerateResult:
    """What comes after a prompt.

    Attributes:
        choices: The answers.
        usage: Tokens of the prompt, once.
        completion_tokens: Tokens of all answers.
    """

    choices: tuple[GeneratedChoice, ...]
    usage: Usage
    completion_tokens: int


def parse_generation(fields: Mapping[str, object], tokenizer: Tokenizer, limits: Limits) -> ParsedText:
    """Validate the fields of a generation and tokenise its prompt, of which nothing is scored.

    Args:
        fields: `prompt`, a text or token ids, and the others of `FIELDS`; null means absent.
        tokenizer: The model's, which also says where answers end.
        limits: What the request may ask for.

    Raises:
        RequestError: the request breaks the contract; `code` and `param` say where.
    """
    check_names(fields, FIELDS)
    check_task("complete", tokenizer, limits)
    given = read_prompts(fields)
    if len(given) != 1:
        raise RequestError("invalid_prompt", "prompt must be one text, or one list of token ids.", "prompt")
    choices = read_draws(fields)
    check_sequences(1, choices, limits)
    count = read_whole(fields, "max_new_tokens", range(1, 2**31)) or NEW_TOKENS
    options = AnswerOptions(
        read_sampling(fields, choices, limits.vocab_size),
        read_stops(fields, limits.vocab_size),
        read_whole(fields, "logprobs", range(MAX_TOP_TOKENS + 1)),
        cache_salt=read_optional_text(fields, "cache_salt"),
    )
    prompts = tokenize_prompts(given, tokenizer, limits, 1, read_special(fields))
    return ParsedText(options, (), sequences_behind(prompts, count, options, tokenizer, limits, "max_new_tokens"))


def finish_generation(parsed: ParsedText, writing: Writing) -> GenerateResult:
    """Return what was written, which is complete."""
    usage = Usage(len(parsed.sequences.prompts.tokens), writing.cached_tokens[0])
    return GenerateResult(writing.results(), usage, writing.num_tokens)
