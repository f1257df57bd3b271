"""Small tokenizers for the tests of text: real pipelines, merges trained on a few lines."""

import functools
from collections.abc import Callable

import pytest
import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers

QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<|file_sep|>")
LLAMA_TOKENS = ("<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>")

LINES = (
    "The quick brown fox jumps over the lazy dog, and the dog doesn't mind: it's asleep.",
    "Does the document answer the query? Answer yes or no. Document: rain in the plains.\n\nAnswer: yes\n",
    "In 2024 there were 366 days; 1234567 seconds are 14 days.\n\n\n   indented\n\t\ttabs   \r\n",
    "They'll say we've seen what I'd seen!!! ... (really?) <|im_ end|>",
    "e\u0301 é \u1ec7 中文\uff0c标点。 日本語 привет ελλάδα",
    "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n yes no yes no",
) * 3


@functools.cache
def build(kind: str) -> tokenizers.Tokenizer:
    """Build `qwen`, `llama3`, `gpt2`, `framed` (tokens added at both ends) or `metaspace` (SentencePiece style)."""
    return _metaspace() if kind == "metaspace" else _byte_level(kind)


def _byte_level(kind: str) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.BPE(ignore_merges=kind == "llama3"))
    if kind == "qwen":
        tokenizer.normalizer = normalizers.NFC()
    if kind == "gpt2":
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    else:
        split = pre_tokenizers.Split(Regex(QWEN_SPLIT if kind == "qwen" else LLAMA_SPLIT), behavior="isolated")
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=600, show_progress=False, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(LINES, trainer)
    special = {"qwen": QWEN_TOKENS, "gpt2": ("<|endoftext|>",)}.get(kind, LLAMA_TOKENS)
    tokenizer.add_tokens([AddedToken(text, normalized=False, special=True) for text in special])
    byte_level = processors.ByteLevel(trim_offsets=False)
    if kind in ("llama3", "framed"):
        tokenizer.post_processor = processors.Sequence([byte_level, _frame(tokenizer, end=kind == "framed")])
    else:
        tokenizer.post_processor = byte_level
    return tokenizer


def _metaspace() -> tokenizers.Tokenizer:
    """Like Llama 2: spaces become a letter, no pre-tokens at all, bytes as a last resort."""
    tokenizer = tokenizers.Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    special = ["<unk>", *LLAMA_TOKENS[:2], *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=800, show_progress=False, special_tokens=special)
    tokenizer.train_from_iterator(LINES, trainer)
    tokenizer.post_processor = _frame(tokenizer, end=False)
    return tokenizer


def _frame(tokenizer: tokenizers.Tokenizer, *, end: bool) -> processors.TemplateProcessing:
    begin, final = LLAMA_TOKENS[:2]
    single = f"{begin} $A {final}" if end else f"{begin} $A"
    known = [(text, tokenizer.token_to_id(text)) for text in (begin, final)]
    return processors.TemplateProcessing(single=single, special_tokens=known)


@pytest.fixture(scope="session")
def small_tokenizer() -> Callable[[str], tokenizers.Tokenizer]:
    """Give the small tokenizer of a kind; see `build`."""
    return build
