"""Flags of sglang-jax and SGLang without a counterpart: accepted, so that commands written for those servers work here.

`ACCEPTED` and `WITHOUT_LIMIT` are all that is known of them. A flag that only has another name here is an alias of a
field of `EngineConfig` or `ServerConfig` instead.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import click

from mis_core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Accepted:
    """A flag, a variable and an entry of config files that another server has.

    Attributes:
        name: As a field would be named.
        kind: What its value must be; others are refused.
        why: What happens here instead: one sentence, logged at the start when it is given.
        has_several: It takes several values.
        sets: Options that it stands for, with their values.
        contradicts: Options, with the values that cannot be meant together with it.
    """

    name: str
    kind: click.ParamType
    why: str
    has_several: bool = False
    sets: Mapping[str, Any] = field(default_factory=dict)
    contradicts: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)


_COUNT = click.IntRange(1)

ACCEPTED = (
    Accepted("trust_remote_code", click.BOOL, "Code of a checkpoint is never run; supported models need none."),
    Accepted(
        "device",
        click.Choice(["tpu", "gpu", "cuda", "cpu"]),
        "The engine uses the devices that JAX finds, and the log names them; JAX_PLATFORMS=cpu keeps it to the CPU.",
    ),
    Accepted(
        "attention_backend",
        click.Choice(["fa", "fa_mha", "native"]),
        "The fastest backend that fits the device and the model is chosen, and the log says which.",
    ),
    Accepted("page_size", _COUNT, "The backend decides how many tokens a page has."),
    Accepted("max_prefill_tokens", _COUNT, "A step has at most --chunked-prefill-size tokens, of whatever kind."),
    Accepted(
        "random_seed", click.INT, "Scoring draws no random numbers; a request that generates text may set its own seed."
    ),
    Accepted(
        "disable_overlap_schedule",
        click.BOOL,
        "A step is always planned while the step before it is computed; scores are the same either way.",
    ),
    Accepted(
        "skip_server_warmup",
        click.BOOL,
        "The server sends itself no requests at the start; --skip-warmup skips compiling.",
    ),
    Accepted(
        "precompile_token_paddings",
        _COUNT,
        "The few shapes of steps follow from --chunked-prefill-size, and all are compiled at the start.",
        has_several=True,
    ),
    Accepted(
        "precompile_bs_paddings",
        _COUNT,
        "No compiled shape depends on the number of items or requests.",
        has_several=True,
    ),
    Accepted(
        "enable_scoring_cache",
        click.BOOL,
        "Scores use the prefix cache unless --disable-radix-cache is given.",
        contradicts={"disable_radix_cache": (True,)},
    ),
    Accepted(
        "max_multi_item_seq_len",
        _COUNT,
        "Items never form one long sequence; --max-request-tokens limits a request.",
    ),
    Accepted(
        "multi_item_segment_fallback_threshold",
        click.IntRange(0),
        "Segments need no memory for masks at any length, so nothing falls back to dense masks.",
    ),
    Accepted(
        "multi_item_enable_prefill_extend",
        click.BOOL,
        "This is --scoring-algorithm prefill_extend; delimiters and masks are then ignored.",
        sets={"scoring_algorithm": "prefill_extend", "mask_impl": "auto", "multi_item_scoring_delimiter": None},
        contradicts={"scoring_algorithm": ("serial", "packed")},
    ),
    Accepted(
        "multi_item_extend_batch_size",
        _COUNT,
        "A step takes as many items as its token budget allows, or --multi-item-scoring-chunk-size if that is fewer.",
    ),
    Accepted(
        "multi_item_prefill_extend_cache_timeout",
        click.FloatRange(0),
        "A query stays in the prefix cache until its pages are needed, and for as long as a request uses it.",
    ),
    Accepted(
        "multi_item_enable_score_from_cache_v2",
        click.BOOL,
        "Items always share the cached query.",
    ),
    Accepted(
        "multi_item_score_from_cache_v2_items_per_step",
        _COUNT,
        "A step takes as many items as its token budget allows, or --multi-item-scoring-chunk-size if that is fewer.",
    ),
    Accepted(
        "multi_item_score_label_only_logprob",
        click.BOOL,
        "With apply_softmax, only logits of labels are computed; without it, all logits of the vocabulary are.",
    ),
)
"""Every accepted flag, in the order of `--help` and of the log."""

WITHOUT_LIMIT = -1
"""Value of `chunked_prefill_size` that turns off chunked prefill elsewhere."""

WHY_WITHOUT_LIMIT = "Chunked prefill cannot be turned off, and changes no score; chunks have the default size."


def translate(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Take accepted flags out of the options of a command.

    Returns:
        The other options, set as the flags ask for; and why, by the name of each flag that was given.

    Raises:
        ConfigError: a flag contradicts another option.
    """
    kept, whys = dict(options), {}
    for flag in ACCEPTED:
        given = kept.pop(flag.name)
        if given is None or given is False or given == ():
            continue
        for name, values in flag.contradicts.items():
            if options[name] in values:
                raise ConfigError(
                    f"{flag.name} and {name}={str(options[name]).lower()} contradict each other.", flag.name
                )
        kept |= flag.sets
        whys[flag.name] = flag.why
    if kept["chunked_prefill_size"] == WITHOUT_LIMIT:
        kept["chunked_prefill_size"] = None
        whys["chunked_prefill_size"] = WHY_WITHOUT_LIMIT
    return kept, whys
