"""Model shapes and switches, read from a Hugging Face `config.json`.

A family is data: an entry of `FAMILIES` (`families.py`). Anything in a `config.json`
that would change the arithmetic and is not understood here is refused by name, never ignored (`settings.py`).
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from mis_core.checkpoints import Checkpoint, open_checkpoint
from mis_core.checkpoints.numbers import check_numbers
from mis_core.checkpoints.text_settings import is_of_images, is_saved, saved_settings, text_settings
from mis_core.config import Activation
from mis_core.errors import ModelError, shown
from mis_core.models.families import BARE, FAMILIES, KNOWN, UNSUPPORTED, Family
from mis_core.models.hybrids import recurrent_layers
from mis_core.models.layers import Layer, attention_layers
from mis_core.models.rope import parse_ropes, positive_number
from mis_core.models.settings import check_settings, positive_integer
from mis_core.models.windows import sliding_windows
from mis_kernels.activations import Gate
from mis_kernels.heads import HeadShape
from mis_kernels.recurrence import RecurrentShape

# How a classifier's probabilities are made where `problem_type` is silent: softmax, or sigmoid of a single row.
_ACTIVATIONS: dict[str, Activation] = {
    "single_label_classification": "softmax",
    "multi_label_classification": "sigmoid",
    "regression": "identity",
}

# Settings that change the arithmetic, with the only values the decoder implements.
_SUPPORTED: dict[str, tuple[Any, ...]] = {
    "partial_rotary_factor": (1, 1.0, None),
    "use_bidirectional_attention": (False, None),
}
_GATES: dict[Gate, dict[str, tuple[Any, ...]]] = {
    "silu": {"hidden_act": ("silu", "swish")},  # two names of one function
    "gelu_tanh": {"hidden_activation": ("gelu_pytorch_tanh",)},
}


@dataclass(frozen=True)
class DecisionRows:
    """A trained decision head: rows behind those of the language model's own.

    Attributes:
        count: How many.
        softcap: `softcap * tanh(value / softcap)` is what counts; None: the value.
        has_bias: Whether they have biases.
    """

    count: int
    softcap: float | None
    has_bias: bool


@dataclass(frozen=True)
class ModelConfig:
    """One decoder's shape; lengths and counts in elements.

    Attributes:
        vocab_size: Rows of the embedding and of a language model's head, padding rows included.
        layers: From the first to the last.
        max_positions: Longest sequence the model was trained for, in tokens.
        longest: Longest sequence that may be asked for, in tokens; `max_positions` is what holds where none is.
        attention_scale: Factor of attention's logits.
        tied: The head is the embedding.
        attention_cap: `cap * tanh(logit / cap)` takes the place of a logit of attention (Gemma 2, arXiv 2408.00118);
            None: the logit.
        logit_cap: The same cap for logits of the language model's head.
        embedding_scale: Factor of embeddings, rounded to their type; None: they are taken as they are.
        attention_bias: All four projections of attention have biases.
        mlp_bias: All three projections of the MLP have biases.
        head_labels: Names of the rows of a classification head; none of a language model.
        head_activation: What makes probabilities of a classification head's values.
        decision: The decision head beside it, if there is one.
        has_vocabulary_head: Whether next tokens can be told; without, the model has nothing but a decision head, and
            `tied` only says that no other head is stored.
        is_within: The checkpoint also reads images; only the tensors of its text are read.
    """

    family: Family
    vocab_size: int
    embed: int
    mlp: int
    layers: tuple[Layer, ...]
    max_positions: int
    longest: int
    norm_epsilon: float
    attention_scale: float
    tied: bool
    attention_cap: float | None = None
    logit_cap: float | None = None
    embedding_scale: float | None = None
    attention_bias: bool = False
    mlp_bias: bool = False
    head_labels: tuple[str, ...] = ()
    head_activation: Activation = "softmax"
    architecture: str = ""
    decision: DecisionRows | None = None
    has_vocabulary_head: bool = True
    is_within: bool = False

    @property
    def only_task(self) -> Literal["decide", "token_classify"] | None:
        """The one task that the model's head is for; None where it has others, too."""
        if self.family.of_tokens:
            return "token_classify"
        return None if self.has_vocabulary_head else "decide"

    @property
    def attention(self) -> HeadShape:
        """Heads of every layer's attention: all have the same, since their weights are stacked."""
        return self.layers[0].heads

    @property
    def recurrence(self) -> RecurrentShape | None:
        """What every recurrent layer is like: all are the same, since their weights are stacked; None: none is."""
        return next((layer.recurrence for layer in self.layers if layer.recurrence is not None), None)

    @property
    def rotated(self) -> int:
        """Elements of a head that RoPE rotates, in every layer that has it."""
        ropes = (layer.rope for layer in attention_layers(self.layers) if layer.rope is not None)
        return next((rope.head_dim for rope in ropes), self.attention.head_dim)

    @property
    def recurrent_layers(self) -> int:
        """How many layers are recurrent."""
        return sum(layer.recurrence is not None for layer in self.layers)

    @property
    def head_rows(self) -> int:
        """Rows of the head."""
        return len(self.head_labels) or self.vocab_size

    @property
    def qkv_bias(self) -> bool:
        """Whether query, key and value projections have biases."""
        return self.family.qkv_bias or self.attention_bias


def read_model_config(
    path: Path | Checkpoint, *, ignore_unknown: bool = False, with_decision_head: bool = True
) -> ModelConfig:
    """Read a checkpoint's settings, in the old and the new spelling of RoPE settings.

    Args:
        path: The checkpoint: a directory, or a GGUF file.
        ignore_unknown: Log a warning, where a setting that is not understood would be refused.
        with_decision_head: Whether a decision head belongs to the model, where there is one.

    Raises:
        ModelError: the settings are missing or broken, or ask for something that is not implemented.
    """
    checkpoint = open_checkpoint(path)
    raw = checkpoint.settings()
    head = checkpoint.decision().head if with_decision_head else None
    if is_saved(raw):
        if head is None:
            raise ModelError(f"{checkpoint.path}: has only a decision head, which --decision-prompt disables.")
        raw = saved_settings(raw)
    check_numbers(raw, checkpoint)
    decision = None if head is None else DecisionRows(head.rows, head.softcap, head.has_bias)
    try:
        config = parse_model_config(raw, ignore_unknown=ignore_unknown, decision=decision)
        if checkpoint.has_windows:
            return config
        return replace(config, layers=tuple(replace(layer, window=None) for layer in config.layers))
    except ModelError as error:
        raise ModelError(f"{checkpoint.settings_path}: {error.message}") from None
    except (TypeError, ValueError, LookupError, ArithmeticError, RecursionError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise ModelError(f"{checkpoint.settings_path}: a setting has a value of the wrong type ({reason}).") from None


def parse_model_config(
    raw: dict[str, Any], *, ignore_unknown: bool = False, decision: DecisionRows | None = None
) -> ModelConfig:
    """Return the shape that settings describe: what `config.json` holds.

    Args:
        raw: The settings.
        ignore_unknown: As of `read_model_config`.
        decision: A decision head beside the model, which then needs no other.

    Raises:
        ModelError: they ask for something that is not implemented.
    """
    if is_of_images(raw):
        text = parse_model_config(text_settings(raw), ignore_unknown=ignore_unknown, decision=decision)
        name = raw["architectures"][0]
        # For the tokens of a text alone there is no class.
        family = replace(text.family, of_tokens=name.endswith("ForTokenClassification"))
        return replace(text, family=family, architecture=name, is_within=True)
    architecture = _architecture(raw, may_be_bare=decision is not None)
    is_bare = architecture in BARE
    family = BARE[architecture] if is_bare else FAMILIES[architecture]
    check_settings(raw, own=family.settings, config_class=family.config_class, ignore_unknown=ignore_unknown)
    supported = _SUPPORTED | _GATES[family.gate] | dict(family.only)
    if family.rotated is not None:
        del supported["partial_rotary_factor"]
    for name, allowed in supported.items():
        if name in raw and raw[name] not in allowed:
            raise ModelError(f"{name} = {json.dumps(raw[name])[:80]} is not supported (only {json.dumps(allowed[0])}).")
    if raw.get("quantization_config") is not None:
        raise ModelError(
            "quantization_config: checkpoints with quantised weights are not read; take the model's original weights, "
            "which --quantization int8 quantises when they are loaded."
        )
    embed = positive_integer(raw, "hidden_size")
    heads = positive_integer(raw, "num_attention_heads", family.sizes.get("num_attention_heads"))
    kv_heads = positive_integer(raw, "num_key_value_heads", family.sizes.get("num_key_value_heads", heads))
    if heads % kv_heads:
        raise ModelError(f"num_attention_heads ({heads}) is not a multiple of num_key_value_heads ({kv_heads}).")
    max_positions = positive_integer(raw, "max_position_embeddings", family.max_positions)
    head_dim = positive_integer(raw, "head_dim", family.head_dim or embed // heads)
    if head_dim % 2:
        raise ModelError(f"head_dim must be even, since RoPE rotates pairs, not {head_dim}.")
    rope, local_rope = parse_ropes(
        raw, head_dim, max_positions, family.theta, family.local_theta, rotated=family.rotated,
        ignore_unknown=ignore_unknown,
    )  # fmt: skip
    longest = min(rope.longest, local_rope.longest)
    shape, has_rope = HeadShape(heads, kv_heads, head_dim), _has_rope(raw, family.nope_interval)
    recurrences = recurrent_layers(raw, len(has_rope), family.recurrent_interval)
    is_hybrid = any(recurrences)
    windows = [None] * len(has_rope) if is_hybrid else sliding_windows(raw, has_rope, family.sliding)
    head_labels = _head_labels(raw) if family.classifies else ()
    return ModelConfig(
        family=family,
        vocab_size=positive_integer(raw, "vocab_size"),
        embed=embed,
        mlp=positive_integer(raw, "intermediate_size"),
        layers=tuple(
            Layer(
                shape,
                None if not rotates or recurrence else rope if window is None else local_rope,
                None if window is None or window >= longest else window,  # one that holds every sequence is none
                recurrence,
            )
            for rotates, window, recurrence in zip(has_rope, windows, recurrences, strict=True)
        ),
        max_positions=max_positions,
        longest=longest,
        norm_epsilon=positive_number(raw, "rms_norm_eps", 1e-6),
        attention_scale=_attention_scale(raw, family, head_dim),
        tied=is_bare or (_switch(raw, "tie_word_embeddings", family.tied) and not family.classifies),
        attention_cap=_attention_cap(raw, family),
        logit_cap=_logit_cap(raw, family),
        embedding_scale=embed**0.5 if family.scales_embedding else None,
        attention_bias="attention_bias" in family.settings and _switch(raw, "attention_bias"),
        mlp_bias="mlp_bias" in family.settings and _switch(raw, "mlp_bias"),
        head_labels=head_labels,
        head_activation=_head_activation(raw, len(head_labels)) if family.classifies else "softmax",
        architecture=architecture,
        decision=decision,
        has_vocabulary_head=not is_bare,
    )


def _attention_scale(raw: dict[str, Any], family: Family, head_dim: int) -> float:
    if family.query_scalar is None:
        return head_dim**-0.5
    return positive_number(raw, "query_pre_attn_scalar", family.query_scalar) ** -0.5


def _attention_cap(raw: dict[str, Any], family: Family) -> float | None:
    """Return Gemma 2's; transformers has Gemma 3's setting, and does not read it."""
    return None if family.attention_cap is None else _cap(raw, "attn_logit_softcapping", family.attention_cap)


def _logit_cap(raw: dict[str, Any], family: Family) -> float | None:
    """Return that of a language model: a classifier has none."""
    name = "final_logit_softcapping"
    return _cap(raw, name, family.logit_cap) if name in family.settings and not family.classifies else None


def _cap(raw: dict[str, Any], name: str, default: float | None) -> float | None:
    value = raw.get(name, default)
    return None if value is None else positive_number({name: value}, name)


def _architecture(raw: dict[str, Any], *, may_be_bare: bool) -> str:
    names = raw.get("architectures") or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ModelError(f"architectures must be a list of names, not {json.dumps(names)[:80]}.")
    known = FAMILIES | BARE if may_be_bare else FAMILIES
    if may_be_bare and not names:  # transformers saves none of a model within another
        names = [name for name, family in BARE.items() if family.model_type == raw.get("model_type")]
    for name in names:
        if name in known:
            kind, own = raw.get("model_type"), known[name].model_type
            if kind not in (None, own):  # by which transformers chooses
                raise ModelError(f"model_type = {json.dumps(kind)[:40]} is not that of {name}, which is {own}.")
            return name
    reasons = (why for relative, why in UNSUPPORTED.items() for name in names if name.startswith(relative))
    why = next((f", since {reason}" for reason in reasons), "")
    raise ModelError(f"architecture {shown(', '.join(names), 80) or '(none)'} is not supported{why}; known: {KNOWN}.")


def _head_labels(raw: dict[str, Any]) -> tuple[str, ...]:
    """Return the names of the head's rows, those that transformers makes up where `id2label` is missing."""
    names, count = raw.get("id2label"), raw.get("num_labels")
    if names is None:
        return tuple(f"LABEL_{row}" for row in range(positive_integer(raw, "num_labels", 2)))
    if not isinstance(names, dict) or not names or not all(isinstance(name, str) for name in names.values()):
        raise ModelError("id2label must be an object that names every row of the head.")
    if set(names) != {str(row) for row in range(len(names))}:
        raise ModelError(f"id2label must name the rows 0 to {len(names) - 1} of the head, each once.")
    if count is not None and count != len(names):
        raise ModelError(f"num_labels ({json.dumps(count)[:40]}) and the {len(names)} names of id2label differ.")
    return tuple(names[str(row)] for row in range(len(names)))


def _head_activation(raw: dict[str, Any], rows: int) -> Activation:
    kind = raw.get("problem_type")
    if kind is None:
        return "softmax" if rows > 1 else "sigmoid"
    if not isinstance(kind, str) or kind not in _ACTIVATIONS:
        known = ", ".join(_ACTIVATIONS)
        raise ModelError(f"problem_type = {json.dumps(kind)[:80]} is not supported; known: {known}.")
    if rows == 1 and kind == "single_label_classification":
        raise ModelError("problem_type = single_label_classification needs more than one label.")
    return _ACTIVATIONS[kind]


def _has_rope(raw: dict[str, Any], interval: int | None) -> list[bool]:
    """Return whether each layer has RoPE: as `no_rope_layers` lists it, or all but the last in every interval."""
    layers, listed = positive_integer(raw, "num_hidden_layers"), raw.get("no_rope_layers")
    if interval is None:
        return [True] * layers
    if listed is None:
        interval = positive_integer(raw, "no_rope_layer_interval", interval)
        return [layer % interval != 0 for layer in range(1, layers + 1)]
    if not isinstance(listed, list) or len(listed) < layers or any(has_rope not in (0, 1) for has_rope in listed):
        raise ModelError(f"no_rope_layers must list 0 or 1 for each of {layers} layers.")
    return [has_rope == 1 for has_rope in listed[:layers]]


def _switch(raw: dict[str, Any], name: str, default: bool = False) -> bool:
    value = raw.get(name, default)
    if not isinstance(value, bool):
        raise ModelError(f"{name} must be true or false, not {json.dumps(value)[:40]}.")
    return value
