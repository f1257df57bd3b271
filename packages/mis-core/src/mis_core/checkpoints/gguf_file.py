"""A checkpoint as llama.cpp has it: a GGUF file with settings, tensors and tokenizer, or several parts of one.

`gguf_parts` opens them; the `gguf` package turns quantised blocks into float32. Anything in the file that would change
the arithmetic and is not understood here is refused by name, never ignored.
"""

import contextlib
import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from mis_core.checkpoints.checkpoint import Checkpoint, StoredDecision, StoredTensor, StoredTokenizer
from mis_core.checkpoints.digests import ModelPart, weights_sha256
from mis_core.checkpoints.files import Files
from mis_core.checkpoints.gguf_decision import TEMPLATE, decision_of
from mis_core.checkpoints.gguf_gemma import ARCHITECTURES as GEMMA
from mis_core.checkpoints.gguf_gemma import TENSORS as GEMMA_TENSORS
from mis_core.checkpoints.gguf_gemma import gemma_settings
from mis_core.checkpoints.gguf_head import HEAD, head_settings
from mis_core.checkpoints.gguf_parts import GgufModel, open_parts
from mis_core.checkpoints.gguf_tokenizer import build_tokenizer
from mis_core.checkpoints.signs import Signs, location, signs_of
from mis_core.errors import ModelError

_ARCHITECTURES = {
    "llama": "Llama",
    "qwen2": "Qwen2",
    "qwen3": "Qwen3",
    "smollm3": "SmolLM3",
    "gemma2": "Gemma2",
    "gemma3": "Gemma3",
}
# llama.cpp turns neighbouring elements of these architectures' heads, where Hugging Face turns those half a head
# apart; its converter reorders the rows of the projections to suit.
_PAIRED = ("llama", "smollm3")

# Settings behind the architecture's name, and what `config.json` calls them.
_SETTINGS = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "rope.freq_base": "rope_theta",
}
# More of them, which change nothing with these values; None: whatever the value.
_WITHOUT_EFFECT: dict[str, tuple[Any, ...] | None] = {
    "vocab_size": None,  # the embedding says it
    "tensor_data_layout": None,
    "use_parallel_residual": (False,),
    "attention.causal": (True,),
    "attention.sliding_window": (0,),
    "expert_count": (0,),
    "expert_used_count": (0,),
    "rope.scaling.attn_factor": (0.0, 1.0),
}
_SIZES_OF_HEADS = ("attention.value_length", "rope.dimension_count")
_ROPE = {
    "rope.scaling.factor": "factor",
    "rope.scaling.original_context_length": "original_max_position_embeddings",
    "rope.scaling.finetuned": "finetuned",
}

_TENSORS = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_SIGNS = re.compile(r"general\.(name|basename|finetune|tags|base_model\.\d+\.(name|repo_url))")
_NAME = re.compile(r"(?:blk\.(?P<layer>\d+)\.)?(?P<part>\w+)\.(?P<kind>weight|bias)")
_DECISION = "decision."
_RERANK = "tokenizer.chat_template.rerank"
_CLASSIFIER = "SequenceClassification"
_ROPE_FACTORS = "rope_freqs.weight"
_MAX_FACTORS = 1 << 16  # one for each pair of a head's elements


class GgufCheckpoint(Checkpoint):
    """A GGUF file, or the parts of one; see `Checkpoint`."""

    def __init__(self, path: Path, files: Files) -> None:
        """Take the path of the file or of its first part, and what bounds its header."""
        self.path = path
        self.settings_path = path
        self._files = files

    @property
    def norms_have_one(self) -> bool:
        """Whether the file is of Gemma; see `Checkpoint`."""
        return self._value("general.architecture") in GEMMA

    def stored_types(self) -> tuple[str, ...]:
        """Return the names of the types that `gguf` turns into float32."""
        import gguf

        return tuple(kind.name for kind in gguf.GGMLQuantizationType if _is_known(kind))

    def signs(self) -> Signs:
        """Read names, tags and base models in the header, and the prompt of a reranker; see `Checkpoint`."""
        named: list[tuple[str, object]] = []
        for key in filter(_SIGNS.fullmatch, self._file.fields):
            value = self._value(key)
            named += [(key, each) for each in (value if isinstance(value, list) else [value])]
        prompt = str(self._value(_RERANK)) if _RERANK in self._file.fields else None
        return signs_of(self.path, named, prompt)

    def settings(self) -> dict[str, Any]:
        """Return the file's settings as a `config.json` would have them; see `Checkpoint`."""
        architecture = str(self._value("general.architecture"))
        if architecture not in _ARCHITECTURES:
            known = ", ".join(_ARCHITECTURES)
            raise ModelError(
                f"{self.path}: GGUF files of architecture {architecture[:40]!r} are not supported; known: {known}."
            )
        prefix = f"{architecture}."
        found = {key.removeprefix(prefix): self._value(key) for key in self._file.fields if key.startswith(prefix)}
        found = {name: value for name, value in found.items() if not name.startswith(_DECISION)}
        settings = {theirs: found.pop(name) for name, theirs in _SETTINGS.items() if name in found}
        tensors = {tensor.name: tensor for tensor in self._file.tensors}
        embedding = tensors.get("token_embd.weight")
        if embedding is None or len(embedding.shape) != 2:
            raise ModelError(f"{self.path}: tensor token_embd.weight is missing or not a matrix.")
        head = head_settings(self.path, found, tensors)
        settings |= head | {
            "architectures": [f"{_ARCHITECTURES[architecture]}For{_CLASSIFIER if head else 'CausalLM'}"],
            "vocab_size": int(embedding.shape[1]),
            "tie_word_embeddings": "output.weight" not in tensors,
            "rope_scaling": self._rope_scaling(found),
        }
        if architecture != "qwen2":  # whose biases are no choice
            settings["attention_bias"] = "blk.0.attn_q.bias" in tensors
            settings["mlp_bias"] = "blk.0.ffn_gate.bias" in tensors
        embed, heads = (settings.get(name) for name in ("hidden_size", "num_attention_heads"))
        if "head_dim" not in settings and isinstance(embed, int) and isinstance(heads, int) and heads:
            settings["head_dim"] = embed // heads  # whatever the architecture
        if architecture in GEMMA:
            settings = gemma_settings(self.path, architecture, found, settings, len(tensors))
        for name, value in found.items():
            allowed = (settings.get("head_dim"),) if name in _SIZES_OF_HEADS else _WITHOUT_EFFECT.get(name, ())
            if allowed is not None and value not in allowed:
                setting = f"{prefix}{name} = {value}"
                raise ModelError(f"{self.path}: setting {setting[:80]!r} is not understood.")
        return settings

    @contextlib.contextmanager
    def tensors(self) -> Iterator[dict[str, "_Tensor"]]:
        """Map the tensors into memory; see `Checkpoint`."""
        settings = self.settings()
        heads = {"attn_q": settings.get("num_attention_heads")}
        heads["attn_k"] = settings.get("num_key_value_heads", heads["attn_q"])
        is_paired = self._value("general.architecture") in _PAIRED
        parts = _TENSORS | (GEMMA_TENSORS if self.norms_have_one else {})
        is_classifier = settings["architectures"][0].endswith(_CLASSIFIER)
        stored: dict[str, _Tensor] = {}
        for tensor in self._file.tensors:
            if tensor.name == _ROPE_FACTORS:  # a setting
                continue
            if tensor.name == HEAD and is_classifier:
                stored["score.weight"] = _Tensor(tensor, is_row=len(tensor.shape) == 1)
                continue
            found = _NAME.fullmatch(tensor.name)
            if found is None or found["part"] not in parts:
                # Whoever looks at the names refuses it, and shows it.
                stored[tensor.name.encode("unicode_escape").decode()] = _Tensor(tensor)
                continue
            layer = "" if found["layer"] is None else f"model.layers.{found['layer']}."
            paired = heads.get(found["part"]) if is_paired else None
            stored[f"{layer}{parts[found['part']]}.{found['kind']}"] = _Tensor(tensor, paired)
        yield stored

    def parts(self, *, with_head: bool) -> tuple[ModelPart, ...]:
        """Read some of each file; see `Checkpoint`."""
        return (ModelPart("base", location(self.path), weights_sha256(None, self._file.paths)),)

    def weight_paths(self) -> list[Path]:
        """Return the file or its parts; see `Checkpoint`."""
        return list(self._file.paths)

    def decision(self) -> StoredDecision:
        """Read the fields that llama.cpp's server reads; see `Checkpoint`."""
        prefix = f"{self._value('general.architecture')}.{_DECISION}"
        if f"{prefix}type" not in self._file.fields:
            return StoredDecision()
        begin = f"{prefix}temperature."
        temperatures = {key.removeprefix(begin): self._value(key) for key in self._file.fields if key.startswith(begin)}
        template = self._value(TEMPLATE) if TEMPLATE in self._file.fields else None
        return decision_of(self.path, self._value(f"{prefix}type"), template, temperatures)

    def tokenizer(self) -> StoredTokenizer:
        """Build the tokenizer of the file's vocabulary and merges; see `Checkpoint`."""
        names = [name for name in self._file.fields if name.startswith("tokenizer.")]
        try:
            return build_tokenizer({name.removeprefix("tokenizer."): self._value(name) for name in names})
        except ModelError as error:
            raise ModelError(f"{self.path}: {error.message}") from None

    @cached_property
    def _file(self) -> GgufModel:
        """What the headers say; the tensors are mapped into memory."""
        return open_parts(self.path, self._files)

    def _value(self, name: str) -> Any:
        """Return a value of the file's header."""
        if name not in self._file.fields:
            raise ModelError(f"{self.path}: {name} is missing.")
        try:
            return self._file.fields[name].contents()
        except UnicodeDecodeError:
            raise ModelError(f"{self.path}: {name} is not UTF-8.") from None

    def _rope_scaling(self, found: dict[str, Any]) -> dict[str, Any] | None:
        """Take the settings of RoPE's extensions out of those found, as `config.json` has them."""
        given = {theirs: found.pop(name) for name, theirs in _ROPE.items() if name in found}
        # llama.cpp takes a factor without a type for a linear one, and a factor of 0 for none.
        kind = found.pop("rope.scaling.type", "linear" if given.get("factor") else "none")
        factors = next((tensor for tensor in self._file.tensors if tensor.name == _ROPE_FACTORS), None)
        if factors is not None:
            if kind != "none":
                raise ModelError(
                    f"{self.path}: has both {_ROPE_FACTORS} and RoPE scaling {str(kind)[:40]!r}; only one is allowed."
                )
            if factors.n_elements > _MAX_FACTORS or not _is_known(factors.tensor_type):
                raise ModelError(f"{self.path}: tensor {_ROPE_FACTORS} is not a list of factors.")
            return {"rope_type": "factors", "factors": _Tensor(factors).read().tolist()}
        return None if kind == "none" else {"rope_type": kind} | given


class _Tensor(StoredTensor):
    """A tensor of a GGUF file; see `StoredTensor`."""

    def __init__(self, tensor: Any, heads: int | None = None, *, is_row: bool = False) -> None:
        """Take the reader's tensor, how many heads its rows are if they are reordered, and whether it is one row."""
        shape = tuple(map(int, reversed(tensor.shape)))
        self.shape = (1, *shape) if is_row else shape
        self.stored_type = tensor.tensor_type.name
        self._tensor = tensor
        self._heads = heads

    def read(self) -> np.ndarray:
        """Return the elements as float32, rows in the order of Hugging Face checkpoints."""
        from gguf import dequantize

        elements = dequantize(self._tensor.data, self._tensor.tensor_type).reshape(self.shape)
        if self._heads is None:
            return elements
        pairs = elements.reshape(self._heads, -1, 2, *elements.shape[1:])
        return pairs.swapaxes(1, 2).reshape(elements.shape)


def _is_known(kind: Any) -> bool:
    """Whether `gguf` turns blocks of this type into float32."""
    from gguf import GGML_QUANT_SIZES, dequantize

    try:
        dequantize(np.zeros((1, GGML_QUANT_SIZES[kind][1]), np.uint8), kind)
    except NotImplementedError:
        return False
    return True
