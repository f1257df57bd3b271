"""Generation in Python: the fields of a request, and its result."""

from collections.abc import Mapping
from dataclasses import dataclass

from mis_core.errors import RequestError
from mis_core.tasks.fields.body import read_body
from mis_core.tasks.limits import Limits
from mis_core.tasks.served import check_task
from mis_core.tasks.text.bodies import GenerateBody
from mis_core.tasks.text.choices import GeneratedChoice, GeneratedChoices
from mis_core.tasks.text.parsed import ParsedText
from mis_core.tasks.text.prompt_field import read_prompts, tokenize_prompts
from mis_core.tasks.text.sampling import sampling_of, stops_of
from mis_core.tasks.text.sequences import AnswerOptions, check_sequences, sequences_after
from mis_core.tasks.usage import Usage
from mis_core.tokenization import Tokenizer


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
        fields: `prompt`, a text or token ids, and the others of `GenerateBody`.
        tokenizer: The model's, which also says where answers end.
        limits: What the request may ask for.

    Raises:
        RequestError: the request breaks the contract; `code` and `param` say where.
    """
    body = read_body(GenerateBody, fields)
    check_task("complete", tokenizer, limits)
    given = read_prompts(body.prompt)
    if len(given) != 1:
        raise RequestError("invalid_prompt", "prompt must be one text, or one list of token ids.", "prompt")
    check_sequences(1, body.n, limits)
    options = AnswerOptions(
        sampling_of(body, body.n, limits.vocab_size),
        stops_of(body, limits.vocab_size),
        body.logprobs,
        cache_salt=body.cache_salt,
    )
    prompts = tokenize_prompts(given, tokenizer, limits, 1, body.add_special_tokens)
    sequences = sequences_after(prompts, body.max_new_tokens, options, tokenizer, limits, "max_new_tokens")
    return ParsedText(options, (), sequences)


def finish_generation(parsed: ParsedText, choices: GeneratedChoices) -> GenerateResult:
    """Return what was generated, which is complete."""
    usage = Usage(len(parsed.sequences.prompts.tokens), choices.cached_tokens[0])
    return GenerateResult(choices.results(), usage, choices.num_tokens)
