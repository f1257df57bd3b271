"""Families of models: what distinguishes one from another in the shared decoder, as data (decision 3)."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from mis_core.checkpoints.text_settings import TIED, WITHIN
from mis_core.models.windows import SlidingLayers, all_layers, by_pattern, from_max_window_layers, without_rope
from mis_kernels.activations import Gate


@dataclass(frozen=True)
class Family:
    """What distinguishes one architecture from another in the shared decoder.

    Attributes:
        name: What transformers calls it.
        settings: Settings of its `config.json` that other families do not have.
        only: Values that alone are implemented of settings, by their names.
        unread: What the names of tensors begin with that transformers leaves out.
        is_text: transformers calls its configuration `<name>TextConfig`, since it is the text of a larger model.
        sizes: Settings that transformers has a size for where `config.json` is silent, besides those below.
        qkv_bias: Query, key and value projections have biases, whatever `config.json` says.
        qk_norm: Queries and keys are RMS-normalised per head before RoPE.
        gates_attention: The columns of a query head are followed by those of a gate, by whose sigmoid the head's output
            is multiplied.
        recurrent_interval: Layers are recurrent but for each of so many where `config.json` is silent; None: none is.
        rotated: Part of a head that RoPE rotates where it is silent; None: a whole head, whatever it says.
        head_dim: Head size where `config.json` is silent; None: `hidden_size / num_attention_heads`.
        max_positions: Longest sequence in tokens where it is silent, as transformers has it.
        theta: Base of RoPE's frequencies where it is silent.
        sliding: How layers slide; None: they never do.
        nope_interval: Every so many layers one has no RoPE where it is silent; None: all have.
        local_theta: Base of RoPE's frequencies of layers that slide where it is silent; None: they have the same RoPE.
        gate: What the MLP's gate goes through.
        norms_add_one: Norms multiply by one more than their weights.
        norms_outputs: The outputs of attention and MLP are normalised before they join the residual.
        scales_embedding: Embeddings are multiplied by the square root of their width.
        query_scalar: `query_pre_attn_scalar` where it is silent, whose root divides attention's logits; None: that is
            the head's width.
        attention_cap: `attn_logit_softcapping` where it is silent; None: attention's logits have no cap.
        logit_cap: `final_logit_softcapping` where it is silent.
        classifies: The head is `score.weight`, a row for each label of `id2label`; never the embedding.
        of_tokens: Every token has such labels, not a sequence as a whole. Then rows have biases, `score.bias`.
    """

    name: str
    settings: tuple[str, ...]
    only: Mapping[str, tuple[Any, ...]] = field(default_factory=dict, hash=False)
    unread: tuple[str, ...] = ()
    is_text: bool = False
    sizes: Mapping[str, int] = field(default_factory=dict, hash=False)
    qkv_bias: bool = False
    qk_norm: bool = False
    gates_attention: bool = False
    recurrent_interval: int | None = None
    rotated: float | None = None
    head_dim: int | None = None
    max_positions: int = 32768
    theta: float = 1e4
    sliding: SlidingLayers | None = None
    nope_interval: int | None = None
    local_theta: float | None = None
    gate: Gate = "silu"
    norms_add_one: bool = False
    norms_outputs: bool = False
    scales_embedding: bool = False
    query_scalar: float | None = None
    attention_cap: float | None = None
    logit_cap: float | None = None
    classifies: bool = False
    of_tokens: bool = False

    @property
    def config_class(self) -> str:
        """Transformers' class of its settings."""
        return f"{self._own_name}Config"

    @property
    def model_type(self) -> str:
        """What its `config.json` has as `model_type`."""
        return f"{self.name.lower()}_text" if self.is_text else self.name.lower()

    @property
    def tied(self) -> bool:
        """Whether the head is the embedding where it is silent."""
        return self.model_type in TIED

    @property
    def bare(self) -> str:
        """Transformers' class of it without a head."""
        return f"{self._own_name}Model"

    def with_heads(self) -> dict[str, Self]:
        """Return it as a language model and as the classifiers that transformers has, by the names of the classes."""
        kinds = ("Sequence",) if self.is_text else ("Sequence", "Token")
        return {f"{self.name}ForCausalLM": self} | {
            f"{self._own_name}For{kind}Classification": replace(self, classifies=True, of_tokens=kind == "Token")
            for kind in kinds
        }

    @property
    def _own_name(self) -> str:
        return f"{self.name}Text" if self.is_text else self.name


_BIASES = ("attention_bias", "mlp_bias")
_WINDOWS = ("sliding_window", "use_sliding_window")
_QWEN = ("max_window_layers", *_WINDOWS)
_NOPE = ("no_rope_layers", "no_rope_layer_interval")
_GEMMA = (
    "attention_bias", "attn_logit_softcapping", "final_logit_softcapping", "hidden_activation", "query_pre_attn_scalar",
    "sliding_window", "use_bidirectional_attention",
)  # fmt: skip

_DELTA_NET = (
    "linear_conv_kernel_dim", "linear_key_head_dim", "linear_num_key_heads", "linear_num_value_heads",
    "linear_value_head_dim",
)  # fmt: skip
_MTP = ("mtp_num_hidden_layers", "mtp_use_dedicated_embeddings")  # layers that transformers leaves out
_QWEN3_5_ONLY: dict[str, tuple[Any, ...]] = {  # of which transformers reads the first alone
    "attention_bias": (False,),
    "attn_output_gate": (True, None),
    "mamba_ssm_dtype": ("float32", None),
    "mlp_only_layers": ([], None),
    "output_gate_type": ("silu", "swish", None),
}

_QWEN_SLIDES = SlidingLayers(from_max_window_layers, needs_switch=True, obeys_types=True)
_DECODERS = (
    Family("Qwen3", ("attention_bias", *_QWEN), qk_norm=True, head_dim=128, sliding=_QWEN_SLIDES),
    Family("Qwen2", _QWEN, qkv_bias=True, sliding=_QWEN_SLIDES),
    Family("Llama", _BIASES, max_positions=2048),
    Family("Mistral", ("sliding_window",), max_positions=131072, sliding=SlidingLayers(all_layers)),
    Family("Ministral", ("sliding_window",), max_positions=131072, sliding=SlidingLayers(all_layers, obeys_types=True)),
    Family(
        "SmolLM3", (*_BIASES, *_WINDOWS, *_NOPE), theta=2e6, nope_interval=4,
        sliding=SlidingLayers(without_rope, None, needs_switch=True, obeys_types=True),
    ),
    Family(
        "Gemma2", _GEMMA, sizes={"num_attention_heads": 8, "num_key_value_heads": 4}, head_dim=256, max_positions=8192,
        sliding=SlidingLayers(by_pattern(2, None), obeys_types=True, always=True), gate="gelu_tanh", norms_add_one=True,
        norms_outputs=True, scales_embedding=True, query_scalar=256, attention_cap=50.0, logit_cap=30.0,
    ),
    Family(
        "Gemma3", (*_GEMMA, "rope_local_base_freq", "sliding_window_pattern"), is_text=True,
        sizes={"num_attention_heads": 8, "num_key_value_heads": 4}, qk_norm=True, head_dim=256,
        max_positions=131072, theta=1e6, local_theta=1e4,
        sliding=SlidingLayers(by_pattern(6, "sliding_window_pattern"), obeys_types=True, always=True), gate="gelu_tanh",
        norms_add_one=True, norms_outputs=True, scales_embedding=True, query_scalar=256,
    ),
    Family(
        "Qwen3_5", ("full_attention_interval", *_QWEN3_5_ONLY, *_DELTA_NET, *_MTP), _QWEN3_5_ONLY,
        unread=("mtp.", "model.visual."), is_text=True,
        sizes={"num_attention_heads": 16, "num_key_value_heads": 4}, qk_norm=True, gates_attention=True,
        recurrent_interval=4, rotated=0.25, head_dim=256, norms_add_one=True,
    ),
)  # fmt: skip
FAMILIES: dict[str, Family] = {name: each for family in _DECODERS for name, each in family.with_heads().items()}
"""By the name of transformers' class, as a language model and as a classifier."""

BARE: dict[str, Family] = {family.bare: family for family in _DECODERS}
"""Those without a head, which another takes the place of."""

UNSUPPORTED = {
    "Qwen3Next": "its MLPs are mixtures of experts",
    "Qwen3_5Moe": "its MLPs are mixtures of experts",
    "Qwen4Exp": "its residual has several streams, mixed by hyper-connections",
}
"""Why relatives of a family are not supported, by what the names of their classes begin with."""

KNOWN = (
    f"{', '.join(family.name for family in _DECODERS)}, each as ForCausalLM and as the classifiers that transformers "
    f"has; the text of {', '.join(WITHIN)}"
)
"""All of them, for errors."""
