"""Which settings of a `config.json` change what a model computes.

Three lists decide. What stands in none of them is looked up in the transformers that is installed: a setting that it
declares for the model is refused off its default, since that version may have learned to compute by it. A key that it
does not declare changes nothing.
"""

import json
import logging
from collections.abc import Iterable, Mapping
from typing import Any

from mis_core.errors import ModelError

logger = logging.getLogger(__name__)

UNDERSTOOD = frozenset(
    {
        "architectures", "head_dim", "hidden_act", "hidden_size", "id2label", "intermediate_size", "layer_types",
        "max_position_embeddings", "model_type", "num_attention_heads", "num_hidden_layers", "num_key_value_heads",
        "num_labels", "original_max_position_embeddings", "partial_rotary_factor", "problem_type",
        "quantization_config", "rms_norm_eps", "rope_parameters", "rope_scaling", "rope_theta", "tie_word_embeddings",
        "transformers_weights", "vocab_size",
    }
)  # fmt: skip
"""Settings of every family that are read here, and checked where they are read; a family has more of its own."""

HARMLESS = frozenset(
    {
        # How the model was, or is, trained.
        "attention_dropout", "classifier_dropout", "gradient_checkpointing", "hidden_dropout", "init_std",
        "initializer_factor", "initializer_range", "loss_type", "pretraining_tp",
        # How transformers computes the same, what it returns, and how it lays work out.
        "_attn_implementation", "_attn_implementation_autoset", "_attn_implementation_internal",
        "_experts_implementation", "_experts_implementation_internal", "_post_init_done",
        "attn_implementation", "base_model_ep_plan", "base_model_fsdp_plan", "cache_implementation",
        "base_model_pp_plan", "base_model_tp_plan", "chunk_size_feed_forward", "distributed_config",
        "experts_implementation", "output_attentions", "output_hidden_states", "return_dict",
        "tie_last_hidden_states", "torchscript",
        # Names, and the types in which weights are stored, which the files say themselves.
        "_commit_hash", "_name_or_path", "_revision", "dtype", "finetuning_task", "label2id", "name_or_path",
        "tokenizer_class", "torch_dtype", "transformers_version",
        # Tokens and sampling, which tokenizer files and requests say.
        "assistant_confidence_threshold", "assistant_lookbehind", "bad_words_ids", "begin_suppress_tokens",
        "bos_token_id", "decoder_start_token_id", "diversity_penalty", "do_sample", "early_stopping",
        "encoder_no_repeat_ngram_size", "encoder_repetition_penalty", "eos_token_id", "epsilon_cutoff", "eta_cutoff",
        "exponential_decay_length_penalty", "forced_bos_token_id", "forced_eos_token_id", "length_penalty",
        "max_length", "min_length", "no_repeat_ngram_size", "num_assistant_tokens", "num_assistant_tokens_schedule",
        "num_beam_groups", "num_beams", "num_return_sequences", "output_scores", "pad_token_id", "prefix",
        "remove_invalid_values", "repetition_penalty", "return_dict_in_generate", "sep_token_id", "suppress_tokens",
        "target_lookbehind", "temperature", "top_k", "top_p", "typical_p", "use_cache",
        # Layers that guess several tokens ahead, which transformers makes when it is asked to.
        "chain_hidden_post_norm", "first_k_dense_replace", "logits_mup_width_multiplier", "mtp_hidden_states_first",
        "mtp_layer_types", "mtp_mlp_layer_types", "mtp_per_layer_config", "num_mtp_layers", "unpadded_vocab_size",
        # What transformers compares with other settings, and refuses or takes.
        "embed_dim", "num_heads",
        # Of families that do not read them: layers slide by other settings alone, and biases are tensors, which are
        # refused where the model has none.
        "attention_bias", "max_window_layers", "mlp_bias",
        # The checkpoint's own code, which neither transformers nor anybody here runs unasked.
        "auto_map", "custom_pipelines",
        # Notes of trainers and hubs.
        "is_llama_config", "rope_interleaved", "transformers.js_config", "unsloth_fixed", "unsloth_version",
    }
)  # fmt: skip
"""Settings whose value changes no score, whoever reads them."""

READ: dict[str, Any] = {
    "_heterogeneity_spec": None,
    "_rope_type_labels": None,
    "add_cross_attention": False,
    "attention_chunk_size": None,
    "attribute_map": {},
    "decoder": None,
    "default_rope_type": "default",
    "fusion_config": None,
    "generator": None,
    "is_causal": True,
    "is_encoder_decoder": False,
    "kv_sharing_modes": None,
    "mlp_layer_types": None,
    "number_of_conv_states": 1,
    "per_layer_config": None,
    "sliding_window": None,
    "text_config": None,
    "text_encoder": None,
    "token_classification_bias": True,
}
"""Settings that transformers' code reads, most of them though the model's class declares none such, and that are not
understood here; each with the only value that leaves the computation as it is."""

_UNREAD = object()
_NAMES_SHOWN = 8


def check_settings(raw: dict[str, Any], *, own: Iterable[str], config_class: str, ignore_unknown: bool = False) -> None:
    """Refuse the settings that change what transformers computes, and that are not understood here.

    Keys that nobody reads are logged in one line.

    Args:
        raw: What `config.json` holds.
        own: Settings that are understood of this family, besides those of all.
        config_class: transformers' class of the family's settings, such as `Qwen3Config`.
        ignore_unknown: Log a warning where a setting would be refused.

    Raises:
        ModelError: a setting is not understood; it is named.
    """
    understood = UNDERSTOOD.union(own)
    unread = []
    for name, value in raw.items():
        if name in understood or name in HARMLESS:
            continue
        neutral = READ[name] if name in READ else _default(config_class, name)
        if neutral is _UNREAD:
            unread.append(shown_name(name))
        elif not _is_same(value, neutral):
            refuse_setting(shown_name(name), value, ignore_unknown=ignore_unknown)
    if unread:
        more = f" and {len(unread) - _NAMES_SHOWN} more" if len(unread) > _NAMES_SHOWN else ""
        logger.info("Settings of config.json that nothing reads: %s%s.", ", ".join(unread[:_NAMES_SHOWN]), more)


def refuse_setting(name: str, value: Any, *, ignore_unknown: bool) -> None:
    """Refuse a setting that is not understood, or log a warning that it is ignored.

    Raises:
        ModelError: it is not to be ignored.
    """
    setting = f"{name} = {json.dumps(value)[:80]}"
    if not ignore_unknown:
        raise ModelError(
            f"{setting} is not understood, and transformers may compute other scores with it; "
            "--ignore-unknown-settings ignores it."
        )
    logger.warning("%s is not understood and ignored: scores may differ from those of transformers.", setting)


def positive_integer(raw: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """Return an integer above 0 of a configuration.

    Raises:
        ModelError: it is something else; names it.
    """
    value = raw.get(name)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ModelError(f"{name} must be a positive integer, not {json.dumps(value)[:40]}.")
    return value


def _default(config_class: str, name: str) -> Any:
    """Return what transformers' class has where `config.json` is silent: of the version that is installed."""
    import transformers  # slow to import, and few models have keys that are in no list

    # A key of a method's name, say, would take its place.
    return getattr(getattr(transformers, config_class), name, _UNREAD)


def _is_same(value: Any, neutral: Any) -> bool:
    """Whether two values are equal, of which true is not 1."""
    return value == neutral and isinstance(value, bool) == isinstance(neutral, bool)


def shown_name(name: str) -> str:
    """Return a key of a file as an error or a log may show it: short, and nothing but what can be printed."""
    return name if name.isascii() and name.isidentifier() else json.dumps(name)[:60]
