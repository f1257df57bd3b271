"""Rotary position embedding (RoPE, arXiv 2104.09864) and its published extensions.

The inverse frequencies of a checkpoint are constants, computed once on the host in float32 as the
checkpoints' own library does. Types: `default`, `linear` (position interpolation, arXiv 2306.15595),
`llama3` (Llama 3.1 model card), `yarn` (arXiv 2309.00071), and `factors`, by which GGUF files have what another type
comes to.
"""

import json
import math
import sys
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float32

from mis_core.errors import ModelError
from mis_core.models.settings import refuse_setting, shown_name

_OF_IMAGES = ("mrope_section", "mrope_interleaved")  # which axis of an image a frequency is for; texts have one
_MOST_POSITIONS = (1 << 31) - 1  # as position ids are int32
# Parameters each type understands, besides `rope_theta` and the type itself; True = required.
_PARAMETERS = {
    "default": {},
    "linear": {"factor": True, "original_max_position_embeddings": False},  # where the factor's context begins
    "llama3": {
        "factor": True,
        "low_freq_factor": True,
        "high_freq_factor": True,
        "original_max_position_embeddings": True,
    },
    "yarn": {
        "factor": True,
        "original_max_position_embeddings": False,
        "attention_factor": False,
        "beta_fast": False,
        "beta_slow": False,
        "mscale": False,
        "mscale_all_dim": False,
        "truncate": False,
        "finetuned": False,  # of the first published code; says how the checkpoint was made
    },
    "factors": {"factors": True},  # of GGUF files, one for every frequency
}


@dataclass(frozen=True)
class RopeConfig:
    """One checkpoint's RoPE.

    Attributes:
        kind: `default`, `linear`, `llama3`, `yarn` or `factors`.
        theta: Base of the frequencies.
        head_dim: Rotated elements of a head: all of them, or as many as `partial_rotary_factor` says.
        max_positions: `max_position_embeddings` of the checkpoint, in tokens.
        parameters: The type's own parameters, as the checkpoint names them.
    """

    kind: str
    theta: float
    head_dim: int
    max_positions: int
    parameters: dict[str, Any] = field(default_factory=dict, hash=False)

    @property
    def longest(self) -> int:
        """Longest sequence that the scaling is made for, in tokens, which may be more than `max_positions`.

        Model cards add YaRN to a model for long texts, and leave `max_position_embeddings` as it was.
        """
        if self.kind not in ("linear", "yarn"):
            return self.max_positions
        original = self.parameters.get("original_max_position_embeddings") or self.max_positions
        return max(self.max_positions, int(min(self.parameters["factor"] * original, _MOST_POSITIONS)))


def parse_rope(
    raw: dict[str, Any],
    head_dim: int,
    max_positions: int,
    theta: float,
    *,
    rotated: float | None = None,
    ignore_unknown: bool = False,
) -> RopeConfig:
    """Read `rope_parameters` (new spelling) or `rope_theta` + `rope_scaling` (old); `theta` is where both are silent.

    Args:
        raw: What `config.json` holds.
        head_dim: Elements of a head.
        max_positions: `max_position_embeddings`, in tokens.
        theta: Base of the frequencies where the settings are silent.
        rotated: Part of a head that is rotated where the settings are silent; None: a whole head, whatever they say.
        ignore_unknown: Log a warning where a parameter that is not understood would be refused.

    Raises:
        ModelError: the type or a parameter is unknown or missing; it is named.
    """
    new = raw.get("rope_parameters")
    for name in ("rope_parameters", "rope_scaling"):
        if not isinstance(raw.get(name) or {}, dict):
            raise ModelError(f"{name} must be an object, not {json.dumps(raw[name])[:40]}.")
    theta = raw.get("rope_theta", theta)
    if new and raw.get("rope_scaling") and _spelt_out(new, theta) != _spelt_out(raw["rope_scaling"], theta):
        raise ModelError("rope_parameters and rope_scaling differ; keep the right one.")
    key = "rope_parameters" if new else "rope_scaling"  # as transformers, which takes an empty one for none
    found = dict(raw.get(key) or {})
    theta = positive_number({"rope_theta": found.pop("rope_theta", theta)}, "rope_theta")
    old_kind = found.pop("type", None)
    kind = found.pop("rope_type", None) or old_kind or "default"
    if rotated is None and found.pop("partial_rotary_factor", 1.0) != 1.0:
        raise ModelError(f"{key}.partial_rotary_factor: only 1.0 is supported.")
    if rotated is not None:
        head_dim = _rotated_elements(raw, found, head_dim, rotated)
    if not isinstance(kind, str) or kind not in _PARAMETERS:
        raise ModelError(f"{key}: RoPE type {json.dumps(kind)[:40]} is not supported; known: {', '.join(_PARAMETERS)}.")
    for name in [name for name in found if name not in _PARAMETERS[kind]]:
        refuse_setting(f"{key}.{shown_name(name)} of type {kind}", found.pop(name), ignore_unknown=ignore_unknown)
    _check_parameters(key, kind, found, head_dim)
    above, name = raw.get("original_max_position_embeddings"), "original_max_position_embeddings"
    if kind in ("llama3", "yarn") and above is not None and above != found.get(name):
        raise ModelError(f"{name} differs from {key}.{name}; keep only the latter.")
    if kind == "yarn" and theta == 1:
        raise ModelError(f"rope_theta must not be 1 for {key} of type yarn, since all frequencies are then the same.")
    return RopeConfig(kind, theta, head_dim, max_positions, found)


def parse_ropes(
    raw: dict[str, Any],
    head_dim: int,
    max_positions: int,
    theta: float,
    local_theta: float | None,
    *,
    rotated: float | None = None,
    ignore_unknown: bool = False,
) -> tuple[RopeConfig, RopeConfig]:
    """Read the RoPE of layers that see everything, and that of layers that slide.

    Gemma 3 has two: `rope_parameters` are then an object for each kind of layer; in the old spelling `rope_theta` and
    `rope_scaling` are those of the first, `rope_local_base_freq` is the base of the second.

    Args:
        raw: What `config.json` holds.
        head_dim: As of `parse_rope`, which reads each.
        max_positions: As there.
        theta: As there, of layers that see everything.
        local_theta: The same of layers that slide; None: all layers have the same RoPE.
        rotated: As there; where all layers have the same.
        ignore_unknown: As there.

    Raises:
        ModelError: as `parse_rope`; or there are parameters of something else than these two kinds.
    """
    if local_theta is None:
        rope = parse_rope(raw, head_dim, max_positions, theta, rotated=rotated, ignore_unknown=ignore_unknown)
        return rope, rope
    given, kinds = raw.get("rope_parameters") or {}, ("full_attention", "sliding_attention")
    scaling = raw.get("rope_scaling")
    if isinstance(scaling, dict) and "type" in scaling and "rope_type" not in scaling:
        raise ModelError("rope_scaling.type: transformers does not read this key for this family; call it rope_type.")
    if not isinstance(given, dict) or not all(kind in kinds for kind in given):
        raise ModelError(f"rope_parameters must have an object for each kind of layer: {' and '.join(kinds)}.")
    old = {
        kinds[0]: {name: raw[name] for name in ("rope_theta", "rope_scaling") if name in raw},
        kinds[1]: {"rope_theta": raw.get("rope_local_base_freq", local_theta)},
    }
    full, sliding = (
        parse_rope(
            old[kind] | {"rope_parameters": given.get(kind)}, head_dim, max_positions, theta,
            ignore_unknown=ignore_unknown,
        )
        for kind in kinds
    )  # fmt: skip
    return full, sliding


def _rotated_elements(raw: dict[str, Any], found: dict[str, Any], head_dim: int, rotated: float) -> int:
    """Return how many elements of a head are rotated; take what says so, and how images are, out of the parameters."""
    for name in _OF_IMAGES:
        found.pop(name, None)
    name = "partial_rotary_factor"
    above = raw.get(name, rotated)
    above = 1.0 if above is None else above  # as transformers takes null
    part = positive_number({name: found.pop(name, above)}, name)
    elements = int(head_dim * part)
    if part > 1 or elements % 2 or not elements:
        raise ModelError(f"{name} must leave an even number of the {head_dim} elements of a head, not {part}.")
    return elements


def _check_parameters(key: str, kind: str, found: dict[str, Any], head_dim: int) -> None:
    for name, required in _PARAMETERS[kind].items():
        if required and name not in found:
            raise ModelError(f"{key}.{name} is missing for RoPE type {kind}.")
    for name, value in found.items():
        if name == "factors":
            _check_factors(value, head_dim // 2)
        elif value is not None and not isinstance(value, bool):
            positive_number(found, name)
        elif _PARAMETERS[kind][name]:
            raise ModelError(f"{key}.{name} must be a positive number, not {json.dumps(value)[:40]}.")


def _check_factors(factors: Any, count: int) -> None:
    if not isinstance(factors, list) or len(factors) != count:
        raise ModelError(f"factors must be {count} numbers, one for every frequency.")
    for factor in factors:
        positive_number({"factors": factor}, "factors")


def _spelt_out(parameters: dict[str, Any], theta: Any) -> dict[str, Any]:
    """Return parameters with their type in the new spelling, and with the theta that holds for them."""
    kind = parameters.get("rope_type", parameters.get("type"))
    return {"rope_theta": theta} | {k: v for k, v in parameters.items() if k != "type"} | {"rope_type": kind}


def positive_number(raw: dict[str, Any], name: str, default: float | None = None) -> float:
    """Return a number above 0 of a configuration.

    Raises:
        ModelError: it is something else; names it.
    """
    value = raw.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= sys.float_info.max:
        raise ModelError(f"{name} must be a positive number, not {json.dumps(value)[:40]}.")
    return float(value)


def frequencies(config: RopeConfig) -> tuple[Float32[np.ndarray, " half_head_dim"], float]:
    """Return the inverse frequencies in radians per position, and the factor of cosines and sines."""
    exponent = np.arange(0, config.head_dim, 2, dtype=np.float32) / np.float32(config.head_dim)
    plain = np.float32(1) / np.float32(config.theta) ** exponent
    match config.kind:
        case "linear":
            return plain / np.float32(config.parameters["factor"]), 1.0
        case "factors":
            return plain / np.asarray(config.parameters["factors"], np.float32), 1.0
        case "llama3":
            return _llama3(plain, config.parameters), 1.0
        case "yarn":
            return _yarn(plain, config)
        case _:
            return plain, 1.0


def _llama3(plain: np.ndarray, parameters: dict[str, Any]) -> np.ndarray:
    factor, low, high = (parameters[name] for name in ("factor", "low_freq_factor", "high_freq_factor"))
    original = parameters["original_max_position_embeddings"]
    wavelength = 2 * math.pi / plain
    smooth = (original / wavelength - low) / (high - low)
    blended = (1 - smooth) * plain / factor + smooth * plain
    long, short = wavelength > original / low, wavelength < original / high
    return np.where(long, plain / factor, np.where(short, plain, blended)).astype(np.float32)


def _yarn(plain: np.ndarray, config: RopeConfig) -> tuple[np.ndarray, float]:
    given = config.parameters
    factor = given["factor"]
    original = given.get("original_max_position_embeddings") or config.max_positions

    def dimension(rotations: float) -> float:
        """Dimension that turns `rotations` times over the original context."""
        wavelengths = math.log(original / (rotations * 2 * math.pi))
        return config.head_dim * wavelengths / (2 * math.log(config.theta))

    low, high = dimension(given.get("beta_fast") or 32), dimension(given.get("beta_slow") or 1)
    if given.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, config.head_dim - 1)
    high = high + 0.001 if low == high else high
    ramp = np.clip((np.arange(config.head_dim // 2, dtype=np.float32) - low) / (high - low), 0, 1)
    blended = plain / np.float32(factor) * ramp + plain * (1 - ramp)
    return blended.astype(np.float32), _yarn_attention(given, factor)


def _yarn_attention(given: dict[str, Any], factor: float) -> float:
    def magnitude(scale: float, weight: float = 1.0) -> float:
        return 0.1 * weight * math.log(scale) + 1.0 if scale > 1 else 1.0

    if given.get("attention_factor") is not None:
        return float(given["attention_factor"])
    if given.get("mscale") and given.get("mscale_all_dim"):
        return magnitude(factor, given["mscale"]) / magnitude(factor, given["mscale_all_dim"])
    return magnitude(factor)
