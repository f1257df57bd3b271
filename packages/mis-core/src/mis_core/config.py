"""Engine options: each is defined once, here, with its default, help, and the flags that set it.

The command line, environment variables and `Engine.from_pretrained` keywords are generated from
these fields, so a new option needs one new field and nothing else.
"""

import dataclasses
import difflib
from dataclasses import dataclass
from typing import Any, Self

from mis_core.errors import ConfigError

DTYPES = ("bfloat16", "float32")


def option(default: Any, help: str, *aliases: str, choices: tuple[str, ...] = ()) -> Any:
    """Declare a field that is also a flag `--name-of-the-field`, its aliases and `MIS_NAME_OF_THE_FIELD`.

    Args:
        default: Value when nobody sets it.
        help: One sentence for `--help`, with the unit.
        aliases: Other spellings of the flag, as other servers have them.
        choices: Allowed values, if few.
    """
    return dataclasses.field(default=default, metadata={"help": help, "aliases": aliases, "choices": choices})


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Everything an engine needs to know before it starts.

    Raises:
        ConfigError: a value is outside its range; names the option.
    """

    model: str = dataclasses.field(metadata={"help": "Hugging Face model directory, or a name in the local hub cache."})
    dtype: str = option("bfloat16", "Type of weights and activations.", choices=DTYPES)
    context_length: int | None = option(
        None, "Longest query + item in tokens; default: the model's own.", "--max-model-len"
    )
    chunked_prefill_size: int = option(
        2048, "Token budget: most new tokens computed in one step, a multiple of 256.", "--max-num-batched-tokens"
    )

    skip_warmup: bool = option(False, "Compile shapes at their first use instead of before readiness.")

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ConfigError(f"dtype must be one of {', '.join(DTYPES)}, not {self.dtype!r}.", "dtype")
        if self.context_length is not None and self.context_length < 1:
            raise ConfigError(f"context_length must be at least 1, not {self.context_length}.", "context_length")
        if self.chunked_prefill_size < 256 or self.chunked_prefill_size % 256:
            raise ConfigError(
                f"chunked_prefill_size must be a multiple of 256, not {self.chunked_prefill_size}.",
                "chunked_prefill_size",
            )

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
