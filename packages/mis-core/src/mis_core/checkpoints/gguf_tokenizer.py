"""The tokenizer of a GGUF file, built from the file's own vocabulary.

Of byte-level BPE, whose `tokenizer.ggml.model` is `gpt2`, a file names how text is split before by one word,
`tokenizer.ggml.pre`, whose meaning is llama.cpp's code; the patterns here are those of the models' own
`tokenizer.json`. Those of SentencePiece, `llama`, are `gguf_sentencepiece`'s.
"""

from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors

from mis_core.checkpoints.checkpoint import StoredTokenizer
from mis_core.checkpoints.gguf_sentencepiece import sentencepiece_backend
from mis_core.errors import ModelError

_LETTERS_AND_MARKS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _by_pattern(digits: str) -> pre_tokenizers.PreTokenizer:
    split = pre_tokenizers.Split(Regex(_LETTERS_AND_MARKS % digits), "isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def _by_digit() -> pre_tokenizers.PreTokenizer:
    digits = pre_tokenizers.Digits(individual_digits=True)
    return pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])


@dataclass(frozen=True)
class _Kind:
    """What one word of `tokenizer.ggml.pre` means.

    Attributes:
        split: What splits text before BPE.
        whole_words: A part that is a token itself is that token, whatever the merges say.
        adds_bos: Whether texts begin with BOS where the file does not say.
    """

    split: pre_tokenizers.PreTokenizer
    whole_words: bool = False
    adds_bos: bool = False


_KINDS = {
    "smollm": _Kind(_by_digit()),
    "llama-bpe": _Kind(_by_pattern(r"\p{N}{1,3}"), whole_words=True, adds_bos=True),
    "qwen2": _Kind(_by_pattern(r"\p{N}")),
}
_MODELS = ("gpt2", "llama")
# Where a file does not say. Gemma's end of an answer is known by its text, since converters do not write its id.
_SENTENCEPIECE_IDS, _GEMMA_END = {"bos": 1, "eos": 2, "unknown": 0}, "<end_of_turn>"
# Types of tokens that are found in texts as they stand: unknown, control, defined by a user.
_ADDED = (2, 3, 4)
_USER_DEFINED = 4
_SPECIAL = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
_ENDS = ("eos", "eot", "eom")


def build_tokenizer(fields: dict[str, Any]) -> StoredTokenizer:
    """Build a tokenizer.

    Args:
        fields: Values of the file's header by their names behind `tokenizer.`.

    Raises:
        ModelError: a field is missing or wrong, or the tokenizer is of a kind that is not known.
    """
    model, template = str(fields.get("ggml.model")), fields.get("chat_template")
    if model not in _MODELS:
        raise _unknown(f"model {model[:40]!r}")
    if not isinstance(template, str | None):
        raise ModelError("tokenizer.chat_template is not a text.")
    tokens, types = _list(fields, "tokens", str), _list(fields, "token_type", int)
    if len(types) != len(tokens):
        raise ModelError(f"tokenizer.ggml has {len(tokens)} tokens, but {len(types)} types.")
    defaults = _SENTENCEPIECE_IDS if model == "llama" else {}
    if model == "llama" and _GEMMA_END in tokens:
        defaults = defaults | {"eot": tokens.index(_GEMMA_END)}
    named = _named(fields, len(tokens), defaults)
    if model == "llama":
        backend, adds_bos = _sentencepiece(fields, tokens, types, named.get("unknown")), True
    else:
        backend, adds_bos = _byte_level(fields, tokens)
    backend.add_tokens(
        [
            AddedToken(token, special=kind != _USER_DEFINED, normalized=False)
            for token, kind in zip(tokens, types, strict=True)
            if kind in _ADDED
        ]
    )
    added = {"bos": adds_bos, "eos": False}
    added = {name: bool(fields.get(f"ggml.add_{name}_token", default)) for name, default in added.items()}
    wanted = {name: (tokens[named[name]], named[name]) for name in added if added[name] and name in named}
    if wanted:
        before, after = ([wanted[name][0]] if name in wanted else [] for name in ("bos", "eos"))
        backend.post_processor = processors.TemplateProcessing(
            single=[*before, "$A", *after], special_tokens=list(wanted.values())
        )
    return StoredTokenizer(
        backend=backend,
        special_tokens={theirs: tokens[named[name]] for name, theirs in _SPECIAL.items() if name in named},
        end_ids=frozenset(named[name] for name in _ENDS if name in named),
        chat_template=template,
    )


def _byte_level(fields: dict[str, Any], tokens: list[str]) -> tuple[Tokenizer, bool]:
    """Build byte-level BPE; returns as well whether texts begin with BOS where the file does not say."""
    pre = str(fields.get("ggml.pre"))
    if pre not in _KINDS:
        raise _unknown(f"pre {pre[:40]!r}")
    kind, vocabulary = _KINDS[pre], {token: index for index, token in enumerate(tokens)}
    pairs = [tuple(merge.split(" ")) for merge in _list(fields, "merges", str)]
    try:
        bpe = models.BPE(vocabulary, pairs, ignore_merges=kind.whole_words)
    except Exception as error:  # the library raises this very type
        raise ModelError(f"tokenizer.ggml.merges do not fit the tokens: {str(error)[:100]!r}") from None
    backend = Tokenizer(bpe)
    backend.pre_tokenizer, backend.decoder = kind.split, decoders.ByteLevel()
    return backend, kind.adds_bos


def _sentencepiece(fields: dict[str, Any], tokens: list[str], types: list[int], unknown: int | None) -> Tokenizer:
    scores = _list(fields, "scores", float)
    if len(scores) != len(tokens):
        raise ModelError(f"tokenizer.ggml has {len(tokens)} tokens, but {len(scores)} scores.")
    return sentencepiece_backend(
        tokens,
        scores,
        types,
        found_whole=_ADDED,
        unknown=None if unknown is None else tokens[unknown],
        has_space_prefix=bool(fields.get("ggml.add_space_prefix", True)),
    )


def _named(fields: dict[str, Any], count: int, defaults: dict[str, int]) -> dict[str, int]:
    """Return the ids of the tokens that have a part to play, by their parts."""
    named = {name: token for name, token in defaults.items() if token < count}
    for name in (*_SPECIAL, *_ENDS):
        if (token := fields.get(f"ggml.{name}_token_id")) is None:
            continue
        if not isinstance(token, int) or not 0 <= token < count:
            raise ModelError(f"tokenizer.ggml.{name}_token_id = {str(token)[:20]} is not a token id.")
        named[name] = token
    return named


def _unknown(what: str) -> ModelError:
    return ModelError(
        f"tokenizer.ggml.{what} is not known; known: gpt2 with pre {', '.join(_KINDS)}, and llama. With "
        "tokenizer_path, the directory of a Hugging Face tokenizer is used instead."
    )


def _list(fields: dict[str, Any], name: str, kind: type) -> list[Any]:
    found = fields.get(f"ggml.{name}")
    if not isinstance(found, list) or not all(isinstance(each, kind) for each in found):
        raise ModelError(f"tokenizer.ggml.{name} is missing or not a list of {kind.__name__}.")
    return found
