"""Families of models: what distinguishes one from another in the shared decoder, as data (decision 3)."""

from dataclasses import dataclass, replace

from mis_core.models.windows import SlidingLayers, all_layers, from_max_window_layers, without_rope


@dataclass(frozen=True)
class Family:
    """What distinguishes one architecture from another in the shared decoder.

    Attributes:
        name: What transformers calls it.
        settings: Settings of its `config.json` that other families do not have.
        qkv_bias: Query, key and value projections have biases, whatever `config.json` says.
        qk_norm: Queries and keys are RMS-normalised per head before RoPE.
        head_dim: Head size where `config.json` is silent; None: `hidden_size / num_attention_heads`.
        max_positions: Longest sequence in tokens where it is silent, as transformers has it.
        theta: Base of RoPE's frequencies where it is silent.
        tied: Whether the head is the embedding where it is silent.
        sliding: How layers slide; None: they never do.
        nope_interval: Every so many layers one has no RoPE where it is silent; None: all have.
        classifies: The head is `score.weight`, a row for each label of `id2label`; never the embedding.
        of_tokens: Every token has such labels, not a sequence as a whole. Then rows have biases, `score.bias`.
    """

    name: str
    settings: tuple[str, ...]
    qkv_bias: bool = False
    qk_norm: bool = False
    head_dim: int | None = None
    max_positions: int = 32768
    theta: float = 1e4
    tied: bool = False
    sliding: SlidingLayers | None = None
    nope_interval: int | None = None
    classifies: bool = False
    of_tokens: bool = False


_BIASES = ("attention_bias", "mlp_bias")
_WINDOWS = ("sliding_window", "use_sliding_window")
_QWEN = ("max_window_layers", *_WINDOWS)
_NOPE = ("no_rope_layers", "no_rope_layer_interval")

_QWEN_SLIDES = SlidingLayers(from_max_window_layers, needs_switch=True, obeys_types=True)
_DECODERS = (
    Family("Qwen3", ("attention_bias", *_QWEN), qk_norm=True, head_dim=128, sliding=_QWEN_SLIDES),
    Family("Qwen2", _QWEN, qkv_bias=True, sliding=_QWEN_SLIDES),
    Family("Llama", _BIASES, max_positions=2048),
    Family("Mistral", ("sliding_window",), max_positions=131072, sliding=SlidingLayers(all_layers)),
    Family("Ministral", ("sliding_window",), max_positions=131072, sliding=SlidingLayers(all_layers, obeys_types=True)),
    Family(
        "SmolLM3", (*_BIASES, *_WINDOWS, *_NOPE), theta=2e6, tied=True, nope_interval=4,
        sliding=SlidingLayers(without_rope, None, needs_switch=True, obeys_types=True),
    ),
)  # fmt: skip
FAMILIES: dict[str, Family] = {f"{family.name}ForCausalLM": family for family in _DECODERS} | {
    f"{family.name}For{kind}Classification": replace(family, classifies=True, of_tokens=kind == "Token")
    for family in _DECODERS
    for kind in ("Sequence", "Token")
}
"""By the name of transformers' class, as a language model and as a classifier."""

BARE: dict[str, Family] = {f"{family.name}Model": family for family in _DECODERS}
"""Those without a head, which another takes the place of."""

_HEADS = "each as ForCausalLM, ForSequenceClassification and ForTokenClassification"
KNOWN = f"{', '.join(family.name for family in _DECODERS)}; {_HEADS}"
"""All of them, for errors."""
