"""Generation in Python: the fields of a request, and its result."""

from collections.abc import Mapping
from dataclasses import dataclass

from mis_core.errors import RequestError
from mis_core.requests import MAX_TOP_TOKENS
from mis_core.tasks.fields.openai import read_whole
from mis_core.tasks.fields.token_rows import TokenRows
from mis_core.tasks.fields.values import check_names, read_bool, read_optional_text
from mis_core.tasks.limits import Limits
from mis_core.tasks.served import check_task
from mis_core.tasks.text.choices import GeneratedChoice, GeneratedChoices
from mis_core.tasks.text.prompt_field import read_prompts, tokenize_prompts
from mis_core.tasks.text.sampling import SAMPLING_FIELDS, Stops, read_draws, read_sampling, read_stops
from mis_core.tasks.text.sequences import Sequences, check_new_tokens, check_sequences
from mis_core.tasks.usage import Usage
from mis_core.tokenization import Tokenizer

FIELDS = ("prompt", "max_new_tokens", *SAMPLING_FIELDS, "logprobs", "cache_salt", "add_special_tokens")
"""Every field of a request."""

NEW_TOKENS = 16
"""Most tokens that are written where a request does not say, as in OpenAI's completions."""


@dataclass(frozen=True, slots=True, eq=False)
class ParsedGeneration:
    """A prompt with its choices as the engine writes them.

    Attributes:
        requests: One sequence for each choice.
        stops: What ends a choice.
        logprobs: How many of the most probable tokens are told with each; None: no log-probabilities at all.
    """

    requests: Sequences
    stops: Stops
    logprobs: int | None


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


def parse_generation(fields: Mapping[str, object], tokenizer: Tokenizer, limits: Limits) -> ParsedGeneration:
    """Validate the fields of a generation and tokenise its prompt.

    Args:
        fields: `prompt`, a text or token ids, and the others of `FIELDS`; None is as good as missing.
        tokenizer: The model's, which also says where answers end.
        limits: What the request may ask for.

    Raises:
        RequestError: the request breaks the contract; `code` and `param` say where.
    """
    check_names(fields, FIELDS)
    check_task("complete", tokenizer, limits)
    given = read_prompts(fields)
    if len(given.lens if isinstance(given, TokenRows) else given) != 1:
        raise RequestError("invalid_prompt", "prompt must be one text, or one list of token ids.", "prompt")
    choices = read_draws(fields)
    check_sequences(1, choices, limits)
    count = read_whole(fields, "max_new_tokens", range(1, 2**31)) or NEW_TOKENS
    sampling, stops = read_sampling(fields, choices, limits.vocab_size), read_stops(fields, limits.vocab_size)
    logprobs, salt = read_whole(fields, "logprobs", range(MAX_TOP_TOKENS + 1)), read_optional_text(fields, "cache_salt")
    special = fields.get("add_special_tokens") is None or read_bool(fields, "add_special_tokens")
    prompts = tokenize_prompts(given, tokenizer, limits, 1, special)
    check_new_tokens(prompts, choices, count, logprobs or 0, limits, "max_new_tokens")
    sequences = Sequences(prompts, count, sampling, stops.end_ids(tokenizer), logprobs or 0, salt)
    return ParsedGeneration(sequences, stops, logprobs)


def finish_generation(parsed: ParsedGeneration, choices: GeneratedChoices) -> GenerateResult:
    """Return what was written, which is complete."""
    usage = Usage(len(parsed.requests[0].prompt), choices.cached_tokens[0])
    return GenerateResult(choices.results(), usage, choices.num_tokens)
