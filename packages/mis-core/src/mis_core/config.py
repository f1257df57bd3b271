"""Engine options: each is defined once, here, with its default, help, and the flags that set it.

The command line, environment variables and `Engine.from_pretrained` keywords are generated from
these fields, so a new option needs one new field and nothing else.
"""

import dataclasses
import difflib
from dataclasses import dataclass
from typing import Any, Self

from mis_core.errors import ConfigError

DTYPES = ("auto", "bfloat16", "float32")
ALGORITHMS = ("auto", "serial", "packed", "prefill_extend")
MASKS = ("auto", "segment", "dense")


def option(default: Any, help: str, *aliases: str, group: str, choices: tuple[str, ...] = ()) -> Any:
    """Declare a field that is also a flag `--name-of-the-field`, its aliases and `MIS_NAME_OF_THE_FIELD`.

    Args:
        default: Value when nobody sets it.
        help: One sentence for `--help`, with the unit.
        aliases: Other spellings of the flag, as other servers have them.
        group: Heading in `--help`.
        choices: Allowed values, if few.
    """
    metadata = {"help": help, "aliases": aliases, "group": group, "choices": choices}
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Everything an engine needs to know before it starts.

    Raises:
        ConfigError: a value is outside its range; names the option.
    """

    model: str = dataclasses.field(
        metadata={"help": "Hugging Face model directory, or a name, which is downloaded unless the hub's cache has it."}
    )
    dtype: str = option(
        "auto",
        "Type of weights and activations; auto: bfloat16 on accelerators and on CPUs with AMX, elsewhere float32.",
        choices=DTYPES,
        group="Model",
    )
    context_length: int | None = option(
        None, "Longest query + item in tokens; default: the model's own.", "--max-model-len", group="Model"
    )
    chunked_prefill_size: int | None = option(
        None,
        "Token budget: most new tokens computed in one step on each device, a multiple of 256; default: 2048 on "
        "CPUs, elsewhere the largest up to 4096 that memory allows.",
        "--max-num-batched-tokens",
        group="Scheduling and scoring",
    )
    tp_size: int = option(
        1, "Devices that weights and KV heads are cut over.", "--tensor-parallel-size", group="Devices and memory"
    )
    dp_size: int = option(
        1,
        "Devices that tokens are cut over, each with all weights.",
        "--data-parallel-size",
        group="Devices and memory",
    )
    max_total_tokens: int | None = option(
        None,
        "Tokens that the KV cache has room for; default: 32768 on CPUs, elsewhere what memory allows.",
        group="Devices and memory",
    )
    mem_fraction_static: float = option(
        0.88,
        "Share of an accelerator's memory for weights and KV cache.",
        "--gpu-memory-utilization",
        group="Devices and memory",
    )
    max_running_requests: int = option(
        256, "Most requests that share the steps; others wait.", "--max-num-seqs", group="Scheduling and scoring"
    )
    disable_radix_cache: bool = option(
        False,
        "Forget a query as soon as its request is planned.",
        "--no-enable-prefix-caching",
        group="Devices and memory",
    )
    scoring_algorithm: str = option(
        "auto",
        "Layout of requests in steps; auto chooses by estimated cost.",
        choices=ALGORITHMS,
        group="Scheduling and scoring",
    )
    mask_impl: str = option(
        "auto",
        "dense materialises masks, as a reference; auto is segment, which needs none.",
        choices=MASKS,
        group="Scheduling and scoring",
    )
    multi_item_scoring_chunk_size: int = option(
        0, "Most items of a request in a step; 0: as many as fit.", group="Scheduling and scoring"
    )
    multi_item_scoring_delimiter: int | None = option(
        None,
        "Token id put between query and item, as older servers need it; default: off.",
        group="Scheduling and scoring",
    )
    enable_mis: bool = option(
        True, "Accepted for the sake of older command lines: it is always on.", group="Scheduling and scoring"
    )
    enable_request_layout: bool = option(
        False,
        "Let requests choose scoring_algorithm, mask_impl and multi_item_scoring_chunk_size.",
        group="Scheduling and scoring",
    )
    compilation_cache_dir: str | None = option(
        None,
        "Folder that keeps compiled steps between starts; default: ~/.cache/mis.",
        group="Start and supervision",
    )
    watchdog_timeout: float = option(
        300.0,
        "Seconds without progress after which an engine process with work to do ends itself, to be restarted.",
        group="Start and supervision",
    )
    skip_warmup: bool = option(
        False, "Compile shapes at their first use instead of before readiness.", group="Start and supervision"
    )

    def __post_init__(self) -> None:
        for name, allowed in (("dtype", DTYPES), ("scoring_algorithm", ALGORITHMS), ("mask_impl", MASKS)):
            if getattr(self, name) not in allowed:
                raise ConfigError(f"{name} must be one of {', '.join(allowed)}, not {getattr(self, name)!r}.", name)
        for name in ("context_length", "tp_size", "dp_size", "max_total_tokens", "max_running_requests"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1, not {value}.", name)
        for name in ("multi_item_scoring_chunk_size", "multi_item_scoring_delimiter"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ConfigError(f"{name} must not be negative, but is {value}.", name)
        size = self.chunked_prefill_size
        if size is not None and (size < 256 or size % 256):
            raise ConfigError(f"chunked_prefill_size must be a multiple of 256, not {size}.", "chunked_prefill_size")
        if not 0 < self.mem_fraction_static < 1:
            raise ConfigError(
                f"mem_fraction_static must be between 0 and 1, not {self.mem_fraction_static}.", "mem_fraction_static"
            )
        if self.watchdog_timeout <= 0:
            raise ConfigError(f"watchdog_timeout must be above 0, not {self.watchdog_timeout}.", "watchdog_timeout")
        self._check_combinations()

    def _check_combinations(self) -> None:
        if self.mask_impl == "dense" and self.scoring_algorithm not in ("auto", "packed"):
            raise ConfigError(
                f"mask_impl dense needs scoring_algorithm packed or auto, not {self.scoring_algorithm}.", "mask_impl"
            )
        if self.scoring_algorithm == "serial" and self.multi_item_scoring_chunk_size > 1:
            raise ConfigError(
                "multi_item_scoring_chunk_size is 1 with scoring_algorithm serial.", "multi_item_scoring_chunk_size"
            )
        if not self.enable_mis:
            raise ConfigError("enable_mis cannot be switched off: it is how this engine works.", "enable_mis")

    @classmethod
    def of(cls, model: str, options: dict[str, Any]) -> Self:
        """Build a config from keyword options.

        Raises:
            ConfigError: an option is unknown; the nearest known one is suggested.
        """
        known = [field.name for field in dataclasses.fields(cls)]
        for name in options:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f" Did you mean {near[0]!r}?" if near else f" Known options: {', '.join(known)}."
                raise ConfigError(f"Unknown engine option {name!r}.{hint}", name)
        return cls(model=model, **options)
