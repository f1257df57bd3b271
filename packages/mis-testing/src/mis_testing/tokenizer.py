"""Tokenizers with the exact pre-tokenisation of each family, trained in process: byte-level BPE, but for Gemma's.

Only the merges are small. Normaliser, split pattern, special tokens and post-processor are those of
the published tokenizers, because the ids of a joined string depend on them: Qwen normalises to NFC and
splits single digits, Llama 3 splits digits by three, ignores merges for whole words and adds
`<|begin_of_text|>`. SmolLM3 splits as Llama 3 does and adds nothing. Mistral's is Tekken, which parts
words at capitals and adds `<s>`. Gemma's is SentencePiece's BPE: spaces are letters, what is unknown becomes bytes, and
`<bos>` is added.
"""

import functools
import json
from dataclasses import dataclass, replace
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
_TEKKEN_SPLIT = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN3_5_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA_SPLIT = _QWEN_SPLIT.replace(r"|\p{N}|", r"|\p{N}{1,3}|")

_QWEN_SPECIAL = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>",
    "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>",
    "<|image_pad|>", "<|video_pad|>",
)  # fmt: skip
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
_SMOLLM3_SPECIAL = (
    "<|begin_of_text|>", "<|end_of_text|>", "<|finetune_right_pad_id|>", "<|start_header_id|>", "<|end_header_id|>",
    "<|eom_id|>", "<|eot_id|>", "<|im_start|>", "<|im_end|>",
)  # fmt: skip
_TEKKEN_SPECIAL = (
    "<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]", "[TOOL_CALLS]", "<pad>",
)  # fmt: skip

_CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_LLAMA_CHAT = (
    "{{ bos_token }}{% for message in messages %}{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'"
    " + message['content'] | trim + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)

_MISTRAL_CHAT = (
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'assistant' %}"
    "{{ message['content'] + eos_token }}{% else %}{{ '[INST]' + message['content'] + '[/INST]' }}{% endif %}"
    "{% endfor %}"
)
_GEMMA_CHAT = (
    "{{ bos_token }}{% for message in messages %}{{ '<start_of_turn>' + message['role'] + '\n'"
    " + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)


@dataclass(frozen=True)
class Habits:
    """What the published tokenizers of a family do.

    Attributes:
        split: Pattern of the pieces that merges stay within; None: of SentencePiece, where spaces are letters.
        special: Special tokens; decoding skips them.
        bos: `bos_token_id` of `config.json`; Qwen names one there but its tokenizer never adds it.
        eos: End of a turn.
        pad: Padding.
        chat: Chat template.
        added: Whole tokens in text, but not skipped when decoding.
        adds_bos: `bos` is put in front of a text.
        normalises: Text is normalised to NFC.
        ignores_merges: A whole piece that is in the vocabulary is one token, whatever its merges.
        tokenizer_class: What `tokenizer_config.json` names.
    """

    split: str | None
    special: tuple[str, ...]
    bos: str
    eos: str
    pad: str
    chat: str
    added: tuple[str, ...] = ()
    adds_bos: bool = False
    normalises: bool = False
    ignores_merges: bool = False
    tokenizer_class: str = "PreTrainedTokenizerFast"


_QWEN3 = Habits(
    split=_QWEN_SPLIT,
    special=_QWEN_SPECIAL,
    bos="<|endoftext|>",
    eos="<|im_end|>",
    pad="<|endoftext|>",
    chat=_CHATML,
    added=_QWEN3_ADDED,
    normalises=True,
    tokenizer_class="Qwen2Tokenizer",
)
_LLAMA = Habits(
    split=_LLAMA_SPLIT,
    special=_LLAMA_SPECIAL,
    bos="<|begin_of_text|>",
    eos="<|eot_id|>",
    pad="<|finetune_right_pad_id|>",
    chat=_LLAMA_CHAT,
    adds_bos=True,
    ignores_merges=True,
)
_SMOLLM3 = replace(
    _LLAMA,
    special=_SMOLLM3_SPECIAL,
    eos="<|im_end|>",
    chat=_CHATML,
    added=("<tool_call>", "</tool_call>", "<think>", "</think>"),
    adds_bos=False,
)
_MISTRAL = Habits(
    split=_TEKKEN_SPLIT,
    special=_TEKKEN_SPECIAL,
    bos="<s>",
    eos="</s>",
    pad="<pad>",
    chat=_MISTRAL_CHAT,
    adds_bos=True,
    ignores_merges=True,
)

_GEMMA = Habits(
    split=None,
    special=("<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"),
    bos="<bos>",
    eos="<eos>",
    pad="<pad>",
    chat=_GEMMA_CHAT,
    adds_bos=True,
)

HABITS: dict[Family, Habits] = {
    "qwen3": _QWEN3,
    "qwen2": replace(_QWEN3, added=_QWEN2_ADDED),
    "llama": _LLAMA,
    "mistral": _MISTRAL,
    "ministral": _MISTRAL,
    "smollm3": _SMOLLM3,
    "gemma2": _GEMMA,
    "gemma3": _GEMMA,
    "qwen3_5": replace(_QWEN3, split=_QWEN3_5_SPLIT),
}
"""By family."""


@functools.cache
def build_tokenizer(family: Family) -> Tokenizer:
    """Train the tokenizer of a family on the built-in corpus; the same every time. Do not change the result."""
    habits = HABITS[family]
    if habits.split is None:
        return _sentence_piece(habits)
    tokenizer = Tokenizer(models.BPE(ignore_merges=habits.ignores_merges))
    if habits.normalises:
        tokenizer.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(habits.split), behavior="isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    texts = (*habits.special, *habits.added)
    tokenizer.add_tokens([AddedToken(text, normalized=False, special=text in habits.special) for text in texts])
    byte_offsets = processors.ByteLevel(trim_offsets=False)
    tokenizer.post_processor = _with_bos(tokenizer, habits.bos) if habits.adds_bos else byte_offsets
    return tokenizer


def _sentence_piece(habits: Habits) -> Tokenizer:
    """Train merges in which a space is a letter; special tokens and bytes come first, as SentencePiece has them."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")  # published ones know no token "a▁b"
    first = [*habits.special, *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, show_progress=False, special_tokens=first)
    tokenizer.train_from_iterator(corpus(), trainer)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.post_processor = _bos_template(tokenizer, habits.bos)
    return tokenizer


def _with_bos(tokenizer: Tokenizer, bos: str) -> processors.Sequence:
    return processors.Sequence([processors.ByteLevel(trim_offsets=False), _bos_template(tokenizer, bos)])


def _bos_template(tokenizer: Tokenizer, bos: str) -> processors.TemplateProcessing:
    return processors.TemplateProcessing(
        single=f"{bos} $A", pair=f"{bos} $A {bos}:1 $B:1", special_tokens=[(bos, tokenizer.token_to_id(bos))]
    )


def write_larger_tokenizer(path: Path, family: Family, vocab_size: int, token: str) -> Path:
    """Write a tokenizer that has a token beyond a model's vocabulary, and return its directory.

    Args:
        path: Directory to write into; made if absent.
        family: Family of the model.
        vocab_size: The model's.
        token: Text of the token whose id this is.
    """
    path.mkdir(parents=True, exist_ok=True)
    missing = vocab_size - build_tokenizer(family).get_vocab_size()
    write_tokenizer(path, family, 4096, (*(f"<|more_{number}|>" for number in range(missing)), token))
    return path


def write_tokenizer(path: Path, family: Family, max_length: int, more: tuple[str, ...] = ()) -> None:
    """Write `tokenizer.json` and `tokenizer_config.json` as `transformers.AutoTokenizer` reads them.

    Args:
        path: Existing directory.
        family: Family of the model.
        max_length: `model_max_length`, in tokens.
        more: Tokens that are added behind all others.
    """
    tokenizer, habits = Tokenizer.from_str(build_tokenizer(family).to_str()), HABITS[family]
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in more])
    tokenizer.save(str(path / "tokenizer.json"))
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
        "bos_token": habits.bos if habits.adds_bos else None,
        "chat_template": habits.chat,
        "clean_up_tokenization_spaces": False,
        "eos_token": habits.eos,
        "model_max_length": max_length,
        "pad_token": habits.pad,
        "tokenizer_class": habits.tokenizer_class,
    }
    if habits.tokenizer_class == "Qwen2Tokenizer":
        config |= {
            "add_bos_token": False,
            "add_prefix_space": False,
            "errors": "replace",
            "split_special_tokens": False,
        }
    text = json.dumps(config, indent=2, ensure_ascii=False) + "\n"
    (path / "tokenizer_config.json").write_text(text, encoding="utf-8")
