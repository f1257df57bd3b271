"""llama.cpp as a target: the query decoded once, its cache shared by many sequences, items decoded in batches.

Reads a GGUF file that is written from the checkpoint beside it, in bfloat16 and without a vocabulary.
"""

import ctypes
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np

BATCH_TOKENS = 2048
SEQUENCES = 64  # items in a batch; llama.cpp's own limit is 256


class LlamaCpp:
    """llama.cpp through its C interface, with as many threads as there are cores."""

    def __init__(self, path: Path) -> None:
        import os

        from targets import Unavailable

        try:
            import gguf
            import llama_cpp
        except ImportError as error:
            raise Unavailable(f"{error.name} is not installed") from None
        file = path / "model-bf16.gguf"
        if not file.exists():
            write_gguf(path, file, gguf)
        self._c: Any = llama_cpp
        llama_cpp.llama_log_set(_SILENT, ctypes.c_void_p(0))
        model = llama_cpp.llama_model_load_from_file(str(file).encode(), llama_cpp.llama_model_default_params())
        parameters = llama_cpp.llama_context_default_params()
        parameters.n_ctx, parameters.n_batch, parameters.n_ubatch = 8192, BATCH_TOKENS, 512
        parameters.n_seq_max, parameters.kv_unified = SEQUENCES + 1, True
        parameters.n_threads = parameters.n_threads_batch = os.cpu_count() or 1
        self._context = llama_cpp.llama_init_from_model(model, parameters) if model else None
        if not self._context:
            raise Unavailable("llama.cpp refused the GGUF file")
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._vocab = json.loads((path / "config.json").read_text())["vocab_size"]

    def score(self, workload: Any) -> np.ndarray:
        """Decode the query as sequence 0, then batches of items as sequences that share its cells."""
        from targets import softmax

        length, labels = len(workload.query), list(workload.labels)
        for begin in range(0, length, BATCH_TOKENS):
            self._decode([(0, begin, workload.query[begin : begin + BATCH_TOKENS])])
        rows = []
        for batch in _batches(workload.items):
            for sequence in range(1, len(batch) + 1):
                self._c.llama_memory_seq_cp(self._memory, 0, sequence, 0, length)
            last = self._decode([(number + 1, length, item) for number, item in enumerate(batch)])
            for row in last:
                logits = np.ctypeslib.as_array(self._c.llama_get_logits_ith(self._context, row), (self._vocab,))
                rows.append(logits[labels])
            for sequence in range(1, len(batch) + 1):
                self._c.llama_memory_seq_rm(self._memory, sequence, -1, -1)
        return softmax(np.stack(rows))

    def forget(self) -> None:
        """Empty the cache."""
        for sequence in range(SEQUENCES + 1):
            self._c.llama_memory_seq_rm(self._memory, sequence, -1, -1)

    def _decode(self, runs: list[tuple[int, int, list[int]]]) -> list[int]:
        """Decode runs of (sequence, first position, tokens) in one call; return the place of each one's last token."""
        count = sum(len(tokens) for _, _, tokens in runs)
        batch = self._c.llama_batch_init(count, 0, 1)
        place, last = 0, []
        for sequence, first, tokens in runs:
            for position, token in enumerate(tokens, first):
                batch.token[place], batch.pos[place] = token, position
                batch.n_seq_id[place], batch.seq_id[place][0] = 1, sequence
                batch.logits[place] = position == first + len(tokens) - 1
                place += 1
            last.append(place - 1)
        batch.n_tokens = count
        status = self._c.llama_decode(self._context, batch)
        self._c.llama_batch_free(batch)
        if status:
            raise RuntimeError(f"llama_decode returned {status}")
        return last


def _batches(items: list[list[int]]) -> list[list[list[int]]]:
    whole, batch = [], []
    for item in items:
        if len(batch) == SEQUENCES or sum(map(len, batch)) + len(item) > BATCH_TOKENS:
            whole.append(batch)
            batch = []
        batch.append(item)
    return [*whole, batch]


@ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
def _SILENT(level: int, text: bytes, data: int) -> None:  # noqa: N802 - a constant, to its user
    """Say nothing."""


def write_gguf(path: Path, file: Path, gguf: Any) -> None:
    """Write a Qwen3 checkpoint as GGUF, names and settings as llama.cpp's own converter gives them."""
    from safetensors import safe_open

    raw = json.loads((path / "config.json").read_text())
    writer = gguf.GGUFWriter(str(file), "qwen3")
    writer.add_block_count(raw["num_hidden_layers"])
    writer.add_context_length(raw["max_position_embeddings"])
    writer.add_embedding_length(raw["hidden_size"])
    writer.add_feed_forward_length(raw["intermediate_size"])
    writer.add_head_count(raw["num_attention_heads"])
    writer.add_head_count_kv(raw["num_key_value_heads"])
    writer.add_key_length(raw["head_dim"])
    writer.add_value_length(raw["head_dim"])
    writer.add_rope_freq_base(raw["rope_theta"])
    writer.add_layer_norm_rms_eps(raw["rms_norm_eps"])
    writer.add_vocab_size(raw["vocab_size"])
    writer.add_tokenizer_model("no_vocab")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    names = {
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "self_attn.q_norm": "attn_q_norm",
        "self_attn.k_norm": "attn_k_norm",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }
    places = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    for layer, (ours, theirs) in itertools.product(range(raw["num_hidden_layers"]), names.items()):
        places[f"model.layers.{layer}.{ours}"] = f"blk.{layer}.{theirs}"
    for part in sorted(path.glob("*.safetensors")):
        with safe_open(part, framework="np") as stored:
            for name in stored.keys():  # noqa: SIM118 - not a mapping
                array = stored.get_tensor(name)
                target = places[name.removesuffix(".weight")] + ".weight"
                if array.ndim == 1:  # norms are float32 there
                    writer.add_tensor(target, array.astype(np.float32))
                else:
                    bits = array.view(np.uint16)
                    kind = gguf.GGMLQuantizationType.BF16
                    writer.add_tensor(target, bits.view(np.uint8), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
