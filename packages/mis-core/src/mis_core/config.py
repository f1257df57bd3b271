"""Engine options: each is defined here, once, with its default, its help, and its flags.

The command line, environment variables and `Engine.from_pretrained` keywords are generated from
these fields, so a new option is one new field and nothing else.
"""

import dataclasses
import difflib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self, get_args

from mis_core.errors import ConfigError

DTYPES = ("auto", "bfloat16", "float32")
QUANTIZATIONS = ("none", "int8")
Algorithm = Literal["auto", "serial", "packed", "prefill_extend"]
ALGORITHMS: tuple[str, ...] = get_args(Algorithm)
Mask = Literal["auto", "segment", "dense"]
MASKS: tuple[str, ...] = get_args(Mask)

RERANK_RECIPES = ("qwen3-reranker", "mxbai-rerank-v2", "generic", "plain")
"""Names that `rerank_template` may have instead of a file; `mis_core.tasks.recipes.recipe` says what they are."""

DECISION_PROMPTS = ("mis", "transformers")
"""Names that `decision_prompt` may have instead of a file: our prompt, and that of transformers for any chat model."""

ChoiceOrder = Literal["given", "sorted", "reversed", "independent"]
"""The order in which decisions read options and levels, see `Question.orders`."""

CHOICE_ORDERS: tuple[str, ...] = get_args(ChoiceOrder)

NO_CALIBRATION = "none"
"""Value of `calibration` that loads none."""

CALIBRATION_FILE = "mis-calibration.json"
"""Name of the calibration file in a model's folder."""

CalibrationMismatch = Literal["error", "warn"]
CALIBRATION_MISMATCHES: tuple[str, ...] = get_args(CalibrationMismatch)

Activation = Literal["softmax", "sigmoid", "identity"]
"""How probabilities are made of the values of a classification head; `identity` leaves the values unchanged."""


def _quoted(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def option(default: Any, help: str, *aliases: str, group: str, choices: tuple[str, ...] = ()) -> Any:
    """Declare a field that is also a flag `--name-of-the-field`, its aliases and `MIS_NAME_OF_THE_FIELD`.

    Args:
        default: Value if it is not set.
        help: Full phrases for `--help`, with the unit.
        aliases: Other names of the flag, as other servers have them.
        group: Heading in `--help`.
        choices: The allowed values, if there are few.
    """
    metadata = {"help": help, "aliases": aliases, "group": group, "choices": choices}
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Everything that an engine needs to know before it starts.

    Raises:
        ConfigError: a value is outside its range; names the option.
    """

    model: str = dataclasses.field(
        metadata={
            "help": "Hugging Face model directory or name, or a GGUF file; a name that is not cached is downloaded."
        }
    )
    dtype: str = option(
        "auto",
        "Data type of weights and activations. `auto` is bfloat16 on accelerators and on CPUs that multiply "
        "bfloat16, and float32 elsewhere.",
        choices=DTYPES,
        group="Model",
    )
    quantization: str = option(
        "none",
        "Data type of the matrix products in layers. `int8` has a scale for each channel of the weights and for each "
        "token of the activations. `none` is the type of --dtype.",
        choices=QUANTIZATIONS,
        group="Model",
    )
    context_length: int | None = option(
        None,
        "Maximum tokens of query and item together. It may exceed the model's own limit as far as YaRN or linear "
        "scaling reaches. Default: the model's own limit.",
        "--max-model-len",
        group="Model",
    )
    chunked_prefill_size: int | None = option(
        None,
        "Token budget: maximum new tokens of a step on each device, a multiple of 256. An item of up to a quarter of "
        "the budget, but at most 1024 tokens, is computed within one step. A longer item may take several steps and "
        "pages of the KV cache. Default: 2048 on CPUs, elsewhere as many as memory allows, up to 4096.",
        "--max-num-batched-tokens",
        group="Scheduling and scoring",
    )
    revision: str | None = option(
        None, "Branch, tag or commit of a model that is given by name. Default: the hub's default.", group="Model"
    )
    download_dir: str | None = option(
        None, "Folder for downloads of models given by name. Default: the hub client's cache.", group="Model"
    )
    tokenizer_path: str | None = option(
        None,
        "Hugging Face directory or name of the tokenizer, or a GGUF file. Default: the model's own.",
        "--tokenizer",
        group="Model",
    )
    merge_lora: str | None = option(
        None,
        "Folder or name of a LoRA adapter, as PEFT saves it, to merge into the weights. Default: none.",
        group="Model",
    )
    chat_template: str | None = option(
        None, "File with a Jinja chat template. Default: the model's own.", group="Model"
    )
    rerank_template: str | None = option(
        None,
        f"Recipe for reranking: {_quoted(RERANK_RECIPES)}, or a file with a Jinja template of query, document and "
        "instruction. Default: the recipe that the checkpoint's files point to.",
        group="Model",
    )
    decision_prompt: str | None = option(
        None,
        f"Prompt of decisions: {_quoted(DECISION_PROMPTS)}, or a file with a Jinja template in the form of "
        "decision_template.jinja. Default: the prompt in the checkpoint's decision.json, otherwise `mis`.",
        group="Model",
    )
    decision_head: str | None = option(
        None,
        "Folder or name of a pointer head, as any2jev saves it, with its adapter and tokenizer. MODEL must be the "
        "model that it was trained on. Default: MODEL, if it is a folder with a pointer head, otherwise none.",
        group="Model",
    )
    choice_order: ChoiceOrder = option(  # noqa: RUF009 - of an immutable type
        "given",
        "Order in which decisions read options and levels, unless a request sets another.",
        group="Model",
        choices=CHOICE_ORDERS,
    )
    calibration: str | None = option(
        None,
        "File written by `mis-server calibrate`, or `none` for no calibration. Default: mis-calibration.json next to "
        "the model, if there is one.",
        group="Model",
    )
    calibration_mismatch: CalibrationMismatch = option(  # noqa: RUF009 - of an immutable type
        "error",
        "What happens with a calibration of another model. `error` refuses to start. `warn` applies the calibration, "
        "and replies have the header `x-mis-calibration: mismatch`.",
        group="Model",
        choices=CALIBRATION_MISMATCHES,
    )
    ignore_unknown_settings: bool = option(
        False,
        "Serve a model whose config.json has unknown settings, and ignore these settings. The log warns of each. "
        "Scores may differ from those of transformers.",
        group="Model",
    )
    max_checkpoint_file_bytes: int | None = option(
        None,
        "Maximum size of a JSON, tokenizer or template file of a checkpoint, in bytes. Default: 16 to 256 MiB, "
        "depending on the kind of file.",
        group="Model",
    )
    tp_size: int = option(
        1,
        "Tensor parallelism: number of devices over which weights and KV heads are sharded.",
        "--tensor-parallel-size",
        group="Devices and memory",
    )
    dp_size: int = option(
        1,
        "Data parallelism: number of devices that each have all weights, a KV cache and requests of their own. A large "
        "request is spread over all devices if there is no other request.",
        "--data-parallel-size",
        group="Devices and memory",
    )
    max_total_tokens: int | None = option(
        None,
        "Capacity of the KV cache in tokens, on each of the --dp-size devices. Default: 32768 on CPUs, elsewhere as "
        "many as memory allows.",
        group="Devices and memory",
    )
    mem_fraction_static: float = option(
        0.88,
        "Fraction of accelerator memory to use for weights and KV cache.",
        "--gpu-memory-utilization",
        group="Devices and memory",
    )
    max_running_requests: int = option(
        256,
        "Maximum requests that share steps. Further requests wait.",
        "--max-num-seqs",
        group="Scheduling and scoring",
    )
    disable_radix_cache: bool = option(
        False,
        "Disable the prefix cache: no request reuses what was computed for an earlier one.",
        "--no-enable-prefix-caching",
        group="Devices and memory",
    )
    scoring_algorithm: str = option(
        "auto",
        "How the items of a request are laid out in steps. `auto` picks the layout with the lowest estimated cost.",
        "--multi-item-scoring-algorithm",
        "--multi-item-algorithm",
        choices=ALGORITHMS,
        group="Scheduling and scoring",
    )
    mask_impl: str = option(
        "auto",
        "How attention is masked. `segment` needs no mask arrays. `dense` makes them, as a reference. `auto` is "
        "`segment`.",
        "--multi-item-mask-impl",
        choices=MASKS,
        group="Scheduling and scoring",
    )
    multi_item_scoring_chunk_size: int = option(
        0, "Maximum items of one request in a step. 0 means as many as fit.", group="Scheduling and scoring"
    )
    multi_item_scoring_delimiter: int | None = option(
        None,
        "Id of a token that is put between query and item, as some older servers do. Default: off.",
        group="Scheduling and scoring",
    )
    enable_mis: bool = option(
        True, "Accepted for compatibility. Multi-item scoring is always on.", group="Scheduling and scoring"
    )
    enable_request_layout: bool = option(
        False,
        "Let requests set scoring_algorithm, mask_impl and multi_item_scoring_chunk_size.",
        group="Scheduling and scoring",
    )
    compilation_cache_dir: str | None = option(
        None,
        "Folder that keeps compiled steps between starts. Default: ~/.cache/mis.",
        group="Start and supervision",
    )
    watchdog_timeout: float = option(
        300.0,
        "Seconds after which the engine process is restarted if it has work but makes no progress.",
        group="Start and supervision",
    )
    skip_warmup: bool = option(
        False,
        "Compile each shape at its first use instead of at startup.",
        "--disable-precompile",
        group="Start and supervision",
    )

    def __post_init__(self) -> None:
        choices = {
            "dtype": DTYPES,
            "quantization": QUANTIZATIONS,
            "scoring_algorithm": ALGORITHMS,
            "mask_impl": MASKS,
            "choice_order": CHOICE_ORDERS,
            "calibration_mismatch": CALIBRATION_MISMATCHES,
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise ConfigError(f"{name} must be one of {', '.join(allowed)}, not {getattr(self, name)!r}.", name)
        at_least_1 = ("context_length", "tp_size", "dp_size", "max_total_tokens", "max_running_requests")
        for name in (*at_least_1, "max_checkpoint_file_bytes"):
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
                "multi_item_scoring_chunk_size is at most 1 with scoring_algorithm serial.",
                "multi_item_scoring_chunk_size",
            )
        if self.decision_head is not None and self.decision_prompt is not None:
            raise ConfigError(
                "decision_prompt cannot be set for a pointer head (decision_head, or its folder as the model), "
                "which has its own prompts.",
                "decision_prompt",
            )
        if not self.enable_mis:
            raise ConfigError("enable_mis cannot be disabled: this engine always scores that way.", "enable_mis")

    @property
    def tokenizer(self) -> str:
        """Path or name of the tokenizer."""
        return self.tokenizer_path or self.model

    @property
    def calibration_path(self) -> Path | None:
        """The calibration file that an option names or `resolve` has found, if any."""
        return None if self.calibration in (None, NO_CALIBRATION) else Path(self.calibration)

    @property
    def rerank_recipe(self) -> str | None:
        """Name of the recipe that `rerank_template` chooses, if it is one."""
        return self.rerank_template if self.rerank_template in RERANK_RECIPES else None

    @property
    def decision_file(self) -> str | None:
        """The file that `decision_prompt` names, unless it is the name of a prompt."""
        return None if self.decision_prompt in DECISION_PROMPTS else self.decision_prompt

    @property
    def rerank_file(self) -> str | None:
        """The file that `rerank_template` names, unless it is the name of a recipe."""
        return None if self.rerank_template in RERANK_RECIPES else self.rerank_template

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


def cache_folder(chosen: str | None) -> Path:
    """Return the folder for what is kept between starts: the chosen one, or `mis` in the user's cache."""
    home = os.environ.get("XDG_CACHE_HOME")
    return Path(chosen) if chosen else (Path(home) if home else Path("~/.cache").expanduser()) / "mis"
