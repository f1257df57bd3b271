"""Sizes of a checkpoint: tiny ones by family for tests; `published` has those of models for benchmarks."""

import dataclasses
import difflib
from dataclasses import dataclass
from typing import Any, Literal, Self

Family = Literal["qwen3", "qwen2", "llama", "mistral", "ministral", "smollm3", "gemma2", "gemma3", "qwen3_5"]
FAMILIES: tuple[Family, ...] = (
    "qwen3", "qwen2", "llama", "mistral", "ministral", "smollm3", "gemma2", "gemma3", "qwen3_5",
)  # fmt: skip
GEMMA: tuple[Family, ...] = ("gemma2", "gemma3")
"""Families with four norms a layer, and with scaled embeddings."""

ADDS_ONE: tuple[Family, ...] = (*GEMMA, "qwen3_5")
"""Families whose norms multiply by one more than their weights."""

DTYPES = ("bfloat16", "float16", "float32")
ROPE_SPELLINGS = ("old", "new")
_SETTINGS_OF: dict[str, tuple[Family, ...]] = {
    "attention_bias": ("qwen3", "llama", "smollm3", *GEMMA),
    "mlp_bias": ("llama", "smollm3"),
    "sliding_window": ("qwen3", "qwen2", "mistral", "ministral", "smollm3", *GEMMA),
    "layer_types": ("qwen3", "qwen2", "ministral", "smollm3", *GEMMA, "qwen3_5"),
    "full_attention_interval": ("qwen3_5",),
    "partial_rotary_factor": ("qwen3_5",),
    "query_pre_attn_scalar": GEMMA,
    "final_logit_softcapping": GEMMA,
    "attn_logit_softcapping": ("gemma2",),
    "rope_local_base_freq": ("gemma3",),
}

LLAMA3_SCALING: dict[str, Any] = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
"""RoPE of Llama 3.x, but for the factor and the original context."""

# What differs from the dataclass defaults. The tiny Llama's scaling has a short original context, so
# that a test of a few dozen tokens already notices when it is ignored. So is the window of the tiny
# Ministral's second layer. That of the tiny SmolLM3 has no RoPE. The tiny Gemmas' first layer slides, their
# caps bite, and their logits are not divided by the root of the head's width. The tiny Qwen3.5 has two blocks of a
# recurrent layer and one with attention, which rotates half of each head.
_FAMILY_DEFAULTS: dict[Family, dict[str, Any]] = {
    "qwen3": {"head_dim": 32, "rope_theta": 1e6},
    "qwen2": {"rope_theta": 1e6},
    "llama": {
        "rope_theta": 5e5,
        "rms_norm_eps": 1e-5,
        "rope_scaling": LLAMA3_SCALING | {"factor": 8.0, "original_max_position_embeddings": 64},
    },
    "mistral": {"rope_theta": 1e6, "rms_norm_eps": 1e-5, "tie_word_embeddings": False},
    "ministral": {"rope_theta": 1e8, "rms_norm_eps": 1e-5, "tie_word_embeddings": False, "sliding_window": 40},
    "smollm3": {"rope_theta": 5e6, "no_rope_layer_interval": 2},
    "gemma2": {
        "head_dim": 32,
        "sliding_window": 40,
        "query_pre_attn_scalar": 24,
        "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 5.0,
    },
    "gemma3": {
        "head_dim": 32,
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        "sliding_window": 40,
        "query_pre_attn_scalar": 24,
    },
    "qwen3_5": {
        "head_dim": 32,
        "num_hidden_layers": 4,
        "rope_theta": 1e6,
        "full_attention_interval": 2,
        "partial_rotary_factor": 0.5,
    },
}


@dataclass(frozen=True, kw_only=True)
class CheckpointShape:
    """Everything that decides the files of a checkpoint. Names are those of `config.json`.

    Attributes:
        family: Architecture: `qwen3` (qk-norm), `qwen2` (qkv bias; Qwen2.5 too), `llama` (Llama 3.x, SmolLM2),
            `mistral`, `ministral` (layers with and without a window), `smollm3` (layers without RoPE), `gemma2` (caps),
            `gemma3` (two kinds of RoPE), `qwen3_5` (recurrent layers before each that attends).
        head_dim: None means `hidden_size // num_attention_heads`; tiny Qwen3 has 32, unlike 64 / 4.
        vocab_size: Rows of the embedding; None means the tokenizer's size, rounded up to 64.
        rope_scaling: None for plain rotary embedding, or a dict with `rope_type` `default`, `linear`,
            `llama3` or `yarn` and the keys that type takes in `config.json`.
        rope_spelling: `old` writes `rope_theta` + `rope_scaling` + `torch_dtype`, as most published
            checkpoints do; `new` writes `rope_parameters` + `dtype`, as transformers 5 does.
        attention_bias: All projections of attention have biases; for `qwen3`, `llama`, `smollm3` and the Gemmas.
        mlp_bias: All projections of the MLP have biases; for `llama` and `smollm3`.
        no_rope_layers: 0 for each layer without RoPE, 1 for others; for `smollm3`. None leaves it to the interval.
        no_rope_layer_interval: One layer in this many has no RoPE; for `smollm3`.
        sliding_window: Positions that a token of a layer that slides sees; not for `llama`. None: no layer slides. All
            layers slide in `mistral`, those without RoPE in `smollm3`, the first, third and so on in Gemmas, in others
            those from the middle on.
        layer_types: `full_attention` or `sliding_attention` for each layer, if other layers slide; not for `mistral`.
            In `qwen3_5` the recurrent ones are `linear_attention`.
        full_attention_interval: One layer in this many is not recurrent; for `qwen3_5`.
        partial_rotary_factor: Part of a head that is rotated; for `qwen3_5`.
        linear_num_key_heads: Heads of queries and keys of a recurrent layer.
        linear_num_value_heads: Heads of its values.
        linear_key_head_dim: Elements of a query or key.
        linear_value_head_dim: Elements of a value.
        linear_conv_kernel_dim: Tokens that its convolution sums.
        rope_local_base_freq: `rope_theta` of layers that slide, which have no scaling; for `gemma3`.
        query_pre_attn_scalar: Its root divides attention's logits; for Gemmas.
        attn_logit_softcapping: Soft cap of attention's logits, for `gemma2`; None: none.
        final_logit_softcapping: Soft cap of the head's logits, for Gemmas; None: none.
        head_labels: Names of the rows of a classification head, which then replaces the language model's.
        labels_tokens: Whether that head labels every token; then its rows have biases.
        dtype: Type of the stored weights.
        shards: Number of safetensors files; more than one come with an index.
        seed: Seed of the weights. A tensor's values depend on it and on the tensor's name and shape only.

    Raises:
        ValueError: a size is impossible; names the field and what is allowed.
    """

    family: Family = "qwen3"
    hidden_size: int = 64
    num_hidden_layers: int = 2
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int | None = None
    intermediate_size: int = 128
    vocab_size: int | None = None
    tie_word_embeddings: bool = True
    max_position_embeddings: int = 4096
    rms_norm_eps: float = 1e-6
    rope_theta: float = 1e4
    rope_scaling: dict[str, Any] | None = None
    rope_spelling: Literal["old", "new"] = "old"
    attention_bias: bool = False
    mlp_bias: bool = False
    no_rope_layers: tuple[int, ...] | None = None
    no_rope_layer_interval: int = 4
    sliding_window: int | None = None
    layer_types: tuple[str, ...] | None = None
    full_attention_interval: int | None = None
    partial_rotary_factor: float | None = None
    linear_num_key_heads: int = 2
    linear_num_value_heads: int = 4
    linear_key_head_dim: int = 16
    linear_value_head_dim: int = 32
    linear_conv_kernel_dim: int = 4
    rope_local_base_freq: float | None = None
    query_pre_attn_scalar: float | None = None
    attn_logit_softcapping: float | None = None
    final_logit_softcapping: float | None = None
    head_labels: tuple[str, ...] = ()
    labels_tokens: bool = False
    dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"
    shards: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        for name, allowed in (("dtype", DTYPES), ("rope_spelling", ROPE_SPELLINGS)):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(allowed)}, not {getattr(self, name)!r}.")
        for name, families in _SETTINGS_OF.items():
            if getattr(self, name) and self.family not in families:
                raise ValueError(f"{name} is for {', '.join(families)}, not for {self.family}.")
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads ({self.num_attention_heads}) must be a multiple of "
                f"num_key_value_heads ({self.num_key_value_heads})."
            )
        if self.head_dim is None and self.hidden_size % self.num_attention_heads:
            raise ValueError("hidden_size must be a multiple of num_attention_heads where head_dim is not given.")
        if self.width_of_head % 2:
            raise ValueError(f"head_dim must be even for rotary embedding, not {self.width_of_head}.")
        if self.layer_types is not None and len(self.layer_types) != self.num_hidden_layers:
            raise ValueError(f"layer_types must name {self.num_hidden_layers} layers, not {len(self.layer_types)}.")
        if self.shards < 1:
            raise ValueError(f"shards must be at least 1, not {self.shards}.")

    @classmethod
    def of(cls, family: str = "qwen3", **sizes: Any) -> Self:
        """Fill the family's defaults in for what `sizes` leaves out.

        Raises:
            ValueError: the family or a size is unknown; the nearest known name is suggested.
        """
        known = [field.name for field in dataclasses.fields(cls)]
        for name in sizes:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}."
                raise ValueError(f"Unknown checkpoint size {name!r}; {hint}")
        if family not in FAMILIES:
            raise ValueError(f"family must be one of {', '.join(FAMILIES)}, not {family!r}.")
        return cls(family=family, **(_FAMILY_DEFAULTS[family] | sizes))

    def is_recurrent(self, layer: int) -> bool:
        """Whether a layer is recurrent."""
        if self.family != "qwen3_5":
            return False
        kinds = self.layer_types
        return (layer + 1) % (self.full_attention_interval or 4) != 0 if kinds is None else kinds[layer][0] == "l"

    @property
    def width_of_head(self) -> int:
        """`head_dim`, resolved."""
        return self.head_dim or self.hidden_size // self.num_attention_heads
