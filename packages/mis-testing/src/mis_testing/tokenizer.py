"""Byte-level BPE tokenizers with the exact pre-tokenisation of each family, trained in process.

Only the merges are small. Normaliser, split pattern, special tokens and post-processor are those of
the published tokenizers, because the ids of a joined string depend on them: Qwen normalises to NFC and
splits single digits, Llama 3 splits digits by three, ignores merges for whole words and adds
`<|begin_of_text|>`.
"""

import functools
import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from mis_testing.corpus import corpus
from mis_testing.shapes import Family

VOCABULARY = 900  # entries of the trained BPE, before special tokens

_QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA_SPLIT = _QWEN_SPLIT.replace(r"|\p{N}|", r"|\p{N}{1,3}|")

_QWEN_SPECIAL = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>",
    "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>",
    "<|image_pad|>", "<|video_pad|>",
)  # fmt: skip
# Whole tokens in text, but not skipped when decoding: "special" is false for these.
_QWEN2_ADDED = (
    "<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>",
    "<|repo_name|>", "<|file_sep|>",
)  # fmt: skip
_QWEN3_ADDED = (*_QWEN2_ADDED, "<tool_response>", "</tool_response>", "<think>", "</think>")
_LLAMA_SPECIAL = (
    "<|begin_of_text|>", "<|end_of_text|>", "<|reserved_special_token_0|>", "<|reserved_special_token_1|>",
    "<|finetune_right_pad_id|>", "<|reserved_special_token_2|>", "<|start_header_id|>", "<|end_header_id|>",
    "<|eom_id|>", "<|eot_id|>", "<|python_tag|>",
)  # fmt: skip

BOS_TOKENS: dict[Family, str] = {
    "qwen3": "<|endoftext|>",
    "qwen2": "<|endoftext|>",
    "llama": "<|begin_of_text|>",
}
"""`bos_token_id` of `config.json`; Qwen names one there but its tokenizer never adds it."""
EOS_TOKENS: dict[Family, str] = {"qwen3": "<|im_end|>", "qwen2": "<|im_end|>", "llama": "<|eot_id|>"}

_CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_LLAMA_CHAT = (
    "{{ bos_token }}{% for message in messages %}{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'"
    " + message['content'] | trim + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)


@functools.cache
def build_tokenizer(family: Family) -> Tokenizer:
    """Train the tokenizer of a family on the built-in corpus; the same every time. Do not change the result."""
    is_llama = family == "llama"
    tokenizer = Tokenizer(models.BPE(ignore_merges=is_llama))
    if not is_llama:
        tokenizer.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(_LLAMA_SPLIT if is_llama else _QWEN_SPLIT), behavior="isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    tokenizer.add_tokens(_added_tokens(family))
    tokenizer.post_processor = _post_processor(tokenizer) if is_llama else processors.ByteLevel(trim_offsets=False)
    return tokenizer


def _added_tokens(family: Family) -> list[AddedToken]:
    special = _LLAMA_SPECIAL if family == "llama" else _QWEN_SPECIAL
    plain = {"qwen3": _QWEN3_ADDED, "qwen2": _QWEN2_ADDED, "llama": ()}[family]
    return [AddedToken(text, normalized=False, special=text in special) for text in (*special, *plain)]


def _post_processor(tokenizer: Tokenizer) -> processors.Sequence:
    bos = BOS_TOKENS["llama"]
    template = processors.TemplateProcessing(
        single=f"{bos} $A", pair=f"{bos} $A {bos}:1 $B:1", special_tokens=[(bos, tokenizer.token_to_id(bos))]
    )
    return processors.Sequence([processors.ByteLevel(trim_offsets=False), template])


def write_tokenizer(path: Path, family: Family, max_length: int) -> None:
    """Write `tokenizer.json` and `tokenizer_config.json` as `transformers.AutoTokenizer` reads them.

    Args:
        path: Existing directory.
        family: Family of the model.
        max_length: `model_max_length`, in tokens.
    """
    tokenizer = build_tokenizer(family)
    tokenizer.save(str(path / "tokenizer.json"))
    is_llama = family == "llama"
    config: dict[str, Any] = {
        "added_tokens_decoder": {
            str(number): {
                "content": token.content,
                "lstrip": token.lstrip,
                "normalized": token.normalized,
                "rstrip": token.rstrip,
                "single_word": token.single_word,
                "special": token.special,
            }
            for number, token in sorted(tokenizer.get_added_tokens_decoder().items())
        },
        "bos_token": BOS_TOKENS["llama"] if is_llama else None,
        "chat_template": _LLAMA_CHAT if is_llama else _CHATML,
        "clean_up_tokenization_spaces": False,
        "eos_token": EOS_TOKENS[family],
        "model_max_length": max_length,
        "pad_token": "<|finetune_right_pad_id|>" if is_llama else "<|endoftext|>",
        "tokenizer_class": "PreTrainedTokenizerFast" if is_llama else "Qwen2Tokenizer",
    }
    if not is_llama:
        config |= {
            "add_bos_token": False,
            "add_prefix_space": False,
            "errors": "replace",
            "split_special_tokens": False,
        }
    text = json.dumps(config, indent=2, ensure_ascii=False) + "\n"
    (path / "tokenizer_config.json").write_text(text, encoding="utf-8")
