"""Vocabularies of SentencePiece as GGUF files have them, and what llama.cpp makes of texts by them, step by step."""

from collections.abc import Iterable
from typing import Any

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6
SPECIAL = {"<unk>": UNKNOWN, "<|begin_of_text|>": CONTROL, "<|im_end|>": CONTROL}
RUNS = [char * times for char in " \n\t" for times in (2, 3, 4)]
_DEFINED = ["\n", *RUNS, "<b>", "</b>", "<mask>", "</think>"]


def fields_of(lines: Iterable[str], *, has_space_prefix: bool) -> dict[str, Any]:
    """Train a vocabulary, and return the fields of a file with it, by their names behind `tokenizer.`."""
    trained = Tokenizer(models.BPE())
    trained.normalizer = normalizers.Replace(" ", "▁")
    trained.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    trained.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=600, show_progress=False))
    by_id = sorted(trained.get_vocab().items(), key=lambda each: each[1])
    own = [piece for piece, _ in by_id if piece not in _DEFINED]
    # As SentencePiece lays them out: pieces that are joined first, then the characters, which are never joined.
    own = [piece for piece in own if len(piece) > 1] + [piece for piece in own if len(piece) == 1]
    types = SPECIAL | dict.fromkeys(_DEFINED, USER_DEFINED)
    types |= {f"<0x{byte:02X}>": BYTE for byte in range(256)} | dict.fromkeys(own, NORMAL)
    scores = dict.fromkeys([*SPECIAL, *_DEFINED], -1000.0) | {piece: -float(n) for n, piece in enumerate(own)}
    return {
        "ggml.model": "llama",
        "ggml.pre": "default",
        "ggml.tokens": [*types],
        "ggml.scores": [scores.get(piece, 0.0) for piece in types],
        "ggml.token_type": [*types.values()],
        "ggml.add_space_prefix": has_space_prefix,
        "ggml.bos_token_id": 1,
        "ggml.eos_token_id": 2,
    }


def llama_cpp_ids(fields: dict[str, Any], text: str) -> list[int]:
    """Return the ids of a text without BOS, as `tokenizer_st_partition` and `llm_tokenizer_spm_session` make them."""
    tokens, types = fields["ggml.tokens"], fields["ggml.token_type"]
    ids = {token: number for number, token in enumerate(tokens)}
    whole = [token for token, kind in zip(tokens, types, strict=True) if kind in (UNKNOWN, CONTROL, USER_DEFINED)]
    fragments: list[str | int] = [text] if text else []
    for token in sorted(whole, key=lambda token: -len(token.encode())):
        fragments = [part for each in fragments for part in _parted(each, token, ids[token])]
    found: list[int] = []
    for each in fragments:
        if isinstance(each, int):
            found.append(each)
        else:
            prefixed = " " + each if fields["ggml.add_space_prefix"] else each
            found += _joined(prefixed.replace(" ", "▁"), ids, fields["ggml.scores"])
    return found


def _parted(fragment: str | int, token: str, number: int) -> list[str | int]:
    if isinstance(fragment, int):
        return [fragment]
    first, *others = fragment.split(token)
    parts: list[str | int] = [first]
    for other in others:
        parts += [number, other]
    return [part for part in parts if part != ""]


def _joined(text: str, ids: dict[str, int], scores: list[float]) -> list[int]:
    symbols = list(text)
    while True:
        pairs = [(place, symbols[place] + symbols[place + 1]) for place in range(len(symbols) - 1)]
        known = [(scores[ids[pair]], -place) for place, pair in pairs if pair in ids]
        if not known:
            break
        place = -max(known)[1]
        symbols[place : place + 2] = [symbols[place] + symbols[place + 1]]
    return [
        number
        for symbol in symbols
        for number in ([ids[symbol]] if symbol in ids else [ids[f"<0x{byte:02X}>"] for byte in symbol.encode()])
    ]
