"""What `adapter_config.json` says of a LoRA adapter, as PEFT writes it.

Source: `LoraConfig` and `check_target_module_exists` of PEFT 0.21.
"""

import math
from collections.abc import Mapping
from typing import Any

import msgspec
import regex

from mis_core.errors import ModelError, shown

UNDERSTOOD = frozenset(
    {
        "peft_type", "r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern", "target_modules",
        "exclude_modules", "layers_to_transform", "layers_pattern", "init_lora_weights", "trainable_token_indices",
    }
)  # fmt: skip
"""Fields that say what is merged, and how."""

HARMLESS = frozenset(
    {
        # Who made it, and for what.
        "task_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision", "inference_mode",
        # How it was trained. Products are linear layers, of which PEFT does not read `fan_in_fan_out`.
        "lora_dropout", "fan_in_fan_out", "runtime_config", "loftq_config", "eva_config", "corda_config",
        "lora_ga_config", "qalora_group_size", "megatron_core", "ensure_weight_tying",
    }
)  # fmt: skip
"""Fields that change no product of a trained adapter, whatever they hold."""

REFUSED = frozenset(
    {
        "bias", "lora_bias", "modules_to_save", "use_dora", "layer_replication", "target_parameters",
        "megatron_config", "use_qalora", "alora_invocation_tokens", "use_bdlora",
        "kasa_config", "arrow_config", "velora_config", "monteclora_config",
    }
)  # fmt: skip
"""Fields that must be off: what they say cannot be merged into products."""

EMBEDDING = "embed_tokens"
"""The module whose single rows an adapter may replace."""

_MOST_CHARACTERS, _MOST_PATTERNS = 1000, 1000
_NOT_PYTHONS = regex.compile(r"\{[^}]*[eids]\s*[<:]|\(\?R|\(\?&|\(\?\d")  # `regex` reads them as more than `re` does

_OFF = (None, False, "none", [], {})
_KEEPS_WEIGHTS = (True, False, "gaussian", "eva", "orthogonal")  # beginnings that leave the model's own weights alone


class LoraSettings(msgspec.Struct, frozen=True):
    """What is understood of `adapter_config.json`.

    Attributes:
        r: Rank, where `rank_pattern` has no other.
        lora_alpha: What scales it, where `alpha_pattern` has no other.
        use_rslora: Whether the scale is divided by the root of the rank, not by the rank.
        rank_pattern: Ranks by regular expressions of modules' names.
        alpha_pattern: Likewise.
        target_modules: Names of modules or their ends, or one regular expression.
        exclude_modules: Modules that are no targets, in the same way.
        layers_to_transform: Numbers of the layers that have targets; None: all.
        layers_pattern: Names of the lists of layers; None: any.
        trainable_token_indices: Tokens whose embeddings were trained, too; or these by the name of the embedding.
    """

    target_modules: list[str] | str
    r: int = 8
    lora_alpha: float = 8
    use_rslora: bool = False
    rank_pattern: dict[str, int] = {}
    alpha_pattern: dict[str, float] = {}
    exclude_modules: list[str] | str | None = None
    layers_to_transform: list[int] | int | None = None
    layers_pattern: list[str] | str | None = None
    trainable_token_indices: list[int] | dict[str, list[int]] | None = None

    def rank(self, module: str) -> int:
        """Return the rank of a module."""
        return _by_pattern(self.rank_pattern, module, self.r)

    def scale(self, module: str) -> float:
        """Return what the product of a module's two matrices is multiplied by."""
        rank, alpha = self.rank(module), _by_pattern(self.alpha_pattern, module, self.lora_alpha)
        return alpha / (math.sqrt(rank) if self.use_rslora else rank)

    def tokens(self) -> list[int]:
        """Return the tokens whose embeddings the adapter has, in the order in which it has them.

        Raises:
            ModelError: it has those of another module.
        """
        given = self.trainable_token_indices or []
        if isinstance(given, dict):
            others = [name for name in given if name.rpartition(".")[2] != EMBEDDING]
            if others or len(given) > 1:
                raise ModelError(
                    f"trainable_token_indices may name {EMBEDDING} only, not {shown(', '.join(given), 80)}."
                )
            (given,) = given.values()
        if len(set(given)) < len(given):
            raise ModelError("trainable_token_indices names a token twice.")
        return given

    def targets(self, module: str) -> bool:
        """Whether a module is one that the adapter was made for."""
        if self.exclude_modules and _names(self.exclude_modules, module):
            return False
        if isinstance(self.target_modules, str) or module in self.target_modules:  # whatever layer it is in
            return _names(self.target_modules, module)
        return _names(self.target_modules, module) and self._has_layer(module)

    def _has_layer(self, module: str) -> bool:
        layers = [self.layers_to_transform] if isinstance(self.layers_to_transform, int) else self.layers_to_transform
        if not layers:
            return True
        lists = [self.layers_pattern] if isinstance(self.layers_pattern, str) else self.layers_pattern
        index = r"\.(?P<idx>\d+)\."
        patterns = [rf"(?:^|.*?\.){each}{index}" for each in lists or ()] or [rf".*?\.[^.]*{index}"]
        found = next((match for each in patterns if (match := _match(each, module))), None)
        return found is not None and int(found["idx"]) in layers


def parse_lora_settings(given: Mapping[str, Any]) -> LoraSettings:
    """Read what `adapter_config.json` holds.

    Raises:
        ModelError: it is of another kind of adapter, or says what is not understood; the field is named.
    """
    if given.get("peft_type") != "LORA":
        raise ModelError(f"peft_type is {shown(repr(given.get('peft_type')), 40)}; only LoRA adapters can be merged.")
    for name, value in given.items():
        if name not in UNDERSTOOD | HARMLESS and value not in _OFF:
            why = "cannot be merged into weights" if name in REFUSED else "is not understood"
            raise ModelError(f"{shown(name, 80)} = {shown(repr(value), 80)} {why}.")
    begun = given.get("init_lora_weights", True)
    if not any(begun is each or (isinstance(each, str) and begun == each) for each in _KEEPS_WEIGHTS):
        raise ModelError(
            f"init_lora_weights = {shown(repr(begun), 40)} may change the weights that an adapter was trained on; save "
            "it as a plain LoRA adapter (PEFT's path_initial_model_for_weight_conversion)."
        )
    try:
        settings = msgspec.convert({name: value for name, value in given.items() if value is not None}, LoraSettings)
    except msgspec.ValidationError as error:
        raise ModelError(f"{shown(str(error), 200)}.") from None
    ranks = [settings.r, *settings.rank_pattern.values()]
    alphas = [settings.lora_alpha, *settings.alpha_pattern.values()]
    if len(ranks) + len(alphas) > _MOST_PATTERNS:
        raise ModelError(f"rank_pattern and alpha_pattern have more than {_MOST_PATTERNS:,} patterns.")
    if min(ranks) < 1 or not all(map(math.isfinite, alphas)):
        raise ModelError("a rank must be at least 1, and an alpha a number.")
    return settings


def _names(given: list[str] | str, module: str) -> bool:
    """Whether a regular expression matches a module's name, or a list has it or its end."""
    if isinstance(given, str):
        return _match(rf"(?:{given})\Z", module) is not None
    return module in given or any(module.endswith(f".{each}") for each in given)


def _by_pattern(values: Mapping[str, Any], module: str, otherwise: Any) -> Any:
    """Return the value of the first pattern that matches the end of a module's name."""
    return next((value for key, value in values.items() if _match(rf"(.*\.)?({key})$", module)), otherwise)


def _match(pattern: str, module: str) -> regex.Match[str] | None:
    """Match from the beginning, within a second: a pattern may be a stranger's."""
    if len(pattern) > _MOST_CHARACTERS or _NOT_PYTHONS.search(pattern):
        raise ModelError(
            f"the pattern of modules {shown(repr(pattern), 80)} is too long, or uses syntax that Python lacks."
        )
    try:
        return regex.match(pattern, module, timeout=1)
    except (regex.error, RecursionError, MemoryError) as error:
        why = f"is not a regular expression ({shown(str(error), 80)})"
    except TimeoutError:
        why = "takes more than a second to match"
    raise ModelError(f"the pattern of modules {shown(repr(pattern), 80)} {why}.")
