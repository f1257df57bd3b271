"""What the engine writes behind prompts, and how much of it a request may ask for."""

from dataclasses import replace
from itertools import pairwise

from mis_core.errors import RequestError
from mis_core.generation.request import GenerateRequest
from mis_core.scoring.limits import Limits
from mis_core.scoring.request import Sampling
from mis_core.tasks.sharing import Prompts


def check_new_tokens(
    prompts: Prompts,
    choices: int,
    count: int,
    top_tokens: int,
    limits: Limits,
    param: str,
    prompt_param: str = "prompt",
) -> None:
    """Refuse to write more than fits the context, or than a request may hold.

    Args:
        prompts: The prompts.
        choices: Answers to each.
        count: Most tokens of an answer.
        top_tokens: Most probable tokens that are told with each.
        limits: What the request may ask for.
        param: The field that has `count`.
        prompt_param: The field that has the prompts.

    Raises:
        RequestError: `context_length_exceeded` or `too_many_tokens`.
    """
    longest = int(prompts.lens.max())
    if longest + count > limits.context_length:
        message = (
            f"The prompt's {longest} tokens and {count} new ones are more than the context holds, "
            f"{limits.context_length}; shorten the prompt or lower {param}."
        )
        raise RequestError("context_length_exceeded", message, prompt_param)
    answers = len(prompts.lens) * choices
    tokens, values = len(prompts.tokens) + answers * count, answers * count * (1 + top_tokens)
    if tokens > limits.max_request_tokens:
        message = f"Prompts and {answers} answers may have {tokens} tokens; at most {limits.max_request_tokens} may be."
        raise RequestError("too_many_tokens", message, param)
    if values > limits.max_scores:
        message = (
            f"{answers * count} new tokens may have {values} log-probabilities; at most {limits.max_scores} may be."
        )
        raise RequestError("too_many_tokens", message, param)


def sequences_of(
    prompts: Prompts, count: int, sampling: Sampling, end_ids: frozenset[int], top_tokens: int, cache_salt: str | None
) -> tuple[GenerateRequest, ...]:
    """Return what the engine writes behind prompts: of the first prompt one sequence for each key, then of the next.

    Args:
        prompts: The prompts.
        count: Most tokens of a sequence.
        sampling: How tokens are drawn; each of its keys is that of one answer to every prompt.
        end_ids: Tokens that end a sequence.
        top_tokens: Most probable tokens that are told with each.
        cache_salt: The salt of cached prefixes.
    """
    keyed = [replace(sampling, keys=sampling.keys[each : each + 1]) for each in range(len(sampling.keys))]
    starts = prompts.starts.tolist()
    return tuple(
        GenerateRequest(prompts.tokens[begin:end], count, each, end_ids, top_tokens, cache_salt)
        for begin, end in pairwise(starts)
        for each in keyed
    )
