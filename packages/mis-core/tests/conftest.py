"""Small tokenizers for the tests of text, with the stages of published ones, trained on a few lines; TPU engines."""

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import tokenizers
from pieces import fields_of
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers

from mis_core.checkpoints.gguf_tokenizer import build_tokenizer
from mis_kernels.backends.native import library

QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA_SPLIT = QWEN_SPLIT.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
O200K_SPLIT = (  # gpt-oss, Llama 4
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEEPSEEK_SPLITS = (
    r"\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",  # noqa: RUF001 - as published
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
    "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
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


@pytest.fixture
def plain_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights in float32 stay arrays, for tests that look at them: plain XLA computes."""
    monkeypatch.setattr(library, "why_not_float32", lambda: "would pack weights")


@functools.cache
def build(kind: str) -> tokenizers.Tokenizer:
    """Build the tokenizer of a kind, a key of `BUILDERS`."""
    return BUILDERS[kind]()


def _byte_level(
    *splits: str,
    special: tuple[str, ...] = LLAMA_TOKENS,
    added: tuple[AddedToken, ...] = (),
    first: Any = None,
    prefix: bool = False,
    frame: str = "",
    normalizer: Any = None,
    ignore_merges: bool = False,
) -> tokenizers.Tokenizer:
    """Train byte-pair merges of bytes; without `splits` by the pattern that the byte level has itself."""
    tokenizer = tokenizers.Tokenizer(models.BPE(ignore_merges=ignore_merges))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    stages = [] if first is None else [first]
    stages += [pre_tokenizers.Split(Regex(split), behavior="isolated") for split in splits]
    stages.append(pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=not splits))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(stages) if len(stages) > 1 else stages[0]
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=600, show_progress=False, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(LINES, trainer)
    tokenizer.add_tokens([AddedToken(text, normalized=False, special=True) for text in special])
    tokenizer.add_tokens(list(added))
    byte_level = processors.ByteLevel(trim_offsets=False)
    tokenizer.post_processor = (
        processors.Sequence([byte_level, _frame(tokenizer, end=frame == "both")]) if frame else byte_level
    )
    return tokenizer


def _sentence_piece(normalizer: Any, pre_tokenizer: Any) -> tokenizers.Tokenizer:
    """Train merges in which spaces are letters, with bytes as a last resort, mostly without pre-tokens."""
    tokenizer = tokenizers.Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    special = ["<unk>", *LLAMA_TOKENS[:2], *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=800, show_progress=False, special_tokens=special)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")  # published ones know no token "a▁b"
    tokenizer.train_from_iterator(LINES, trainer)
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.add_tokens([AddedToken("[INST]", normalized=True), AddedToken("<mask>", lstrip=True, normalized=False)])
    tokenizer.post_processor = _frame(tokenizer, end=False)
    return tokenizer


def _from_gguf(*, has_space_prefix: bool) -> tokenizers.Tokenizer:
    """Build one of pieces and scores, as GGUF files have them, with runs of white space as added tokens."""
    return build_tokenizer(fields_of(LINES, has_space_prefix=has_space_prefix)).backend


def _unigram() -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    special = ["<unk>", *LLAMA_TOKENS[:2]]
    tokenizer.train_from_iterator(
        LINES, trainers.UnigramTrainer(vocab_size=200, show_progress=False, special_tokens=special, unk_token="<unk>")
    )
    tokenizer.post_processor = _frame(tokenizer, end=True)
    return tokenizer


def _word_piece() -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[UNK]", *LLAMA_TOKENS[:2]]
    tokenizer.train_from_iterator(
        LINES, trainers.WordPieceTrainer(vocab_size=300, show_progress=False, special_tokens=special)
    )
    tokenizer.post_processor = _frame(tokenizer, end=True)
    return tokenizer


def _unknown() -> tokenizers.Tokenizer:
    """Make one of which nothing is known: tokens depend on how many characters come before."""
    tokenizer = tokenizers.Tokenizer.from_str(build("llama2").to_str())
    tokenizer.pre_tokenizer = pre_tokenizers.FixedLength(5)
    return tokenizer


def _frame(tokenizer: tokenizers.Tokenizer, *, end: bool) -> processors.TemplateProcessing:
    begin, final = LLAMA_TOKENS[:2]
    single = f"{begin} $A {final}" if end else f"{begin} $A"
    known = [(text, tokenizer.token_to_id(text)) for text in (begin, final)]
    return processors.TemplateProcessing(single=single, special_tokens=known)


_SPACES_ARE_LETTERS = normalizers.Replace(" ", "▁")

BUILDERS: dict[str, Callable[[], tokenizers.Tokenizer]] = {
    "qwen": lambda: _byte_level(QWEN_SPLIT, special=QWEN_TOKENS, normalizer=normalizers.NFC()),
    "llama3": lambda: _byte_level(LLAMA_SPLIT, ignore_merges=True, frame="begin"),
    "framed": lambda: _byte_level(LLAMA_SPLIT, frame="both"),
    "gpt2": lambda: _byte_level(special=("<|endoftext|>",)),
    "smollm": lambda: _byte_level(first=pre_tokenizers.Digits(individual_digits=True), special=QWEN_TOKENS[:3]),
    "o200k": lambda: _byte_level(O200K_SPLIT, special=("<|endoftext|>",), ignore_merges=True),
    "deepseek": lambda: _byte_level(
        *DEEPSEEK_SPLITS, added=(AddedToken("<\uff5cUser\uff5c>", normalized=True),), frame="begin"
    ),
    "prefixed": lambda: _byte_level(prefix=True, added=(AddedToken("<mask>", lstrip=True),), frame="both"),
    "llama2": lambda: _sentence_piece(normalizers.Sequence([normalizers.Prepend("▁"), _SPACES_ARE_LETTERS]), None),
    "mistral": lambda: _sentence_piece(None, pre_tokenizers.Metaspace(prepend_scheme="first", split=False)),
    "gemma": lambda: _sentence_piece(_SPACES_ARE_LETTERS, pre_tokenizers.Split(" ", "merged_with_previous")),
    "gemma-gguf": lambda: _from_gguf(has_space_prefix=False),
    "llama2-gguf": lambda: _from_gguf(has_space_prefix=True),
    "unigram": _unigram,
    "bert": _word_piece,
    "unknown": _unknown,
}
"""One for each way of published tokenizers; `framed` adds tokens at both ends, `prefixed` a space (RoBERTa)."""


@pytest.fixture(scope="session")
def small_tokenizer() -> Callable[[str], tokenizers.Tokenizer]:
    """Give the small tokenizer of a kind; see `BUILDERS`. Do not change it."""
    return build


@pytest.fixture(scope="session")
def tpu(interpret: bool) -> Callable[[], AbstractContextManager[None]]:
    """Within `with tpu():`, engines are made for this machine's TPU, or an emulated v6e; kernels check addresses."""
    from mis_kernels.target import compiling_for

    return functools.partial(compiling_for, "v6e" if interpret else None, interpret=interpret, bounds_checks=True)
