"""The bytes of tokens, against what the library's decoders make of whole texts; and tokens that end an answer."""

import json
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models

from mis_core.errors import ModelError
from mis_core.tokenization import Tokenizer
from mis_testing import tiny_checkpoint

TEXTS = [" Do cats purr? 猫😀 é\n\t", "<|im_end|>", "\u0000\u00ad ¡"]


LLAMA2 = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
DECODERS = {
    "qwen": None,  # its own
    "llama3": None,
    "deepseek": None,
    "llama2": LLAMA2,
    "gemma": LLAMA2,
    "gemma-gguf": None,
    "llama2-gguf": None,
    "mistral": decoders.Metaspace(prepend_scheme="first"),
}


@pytest.fixture(scope="module", params=DECODERS)
def tokenizer(request: pytest.FixtureRequest, small_tokenizer) -> Tokenizer:
    backend = tokenizers.Tokenizer.from_str(small_tokenizer(request.param).to_str())
    backend.decoder = DECODERS[request.param] or backend.decoder
    return Tokenizer(backend)


@given(text=st.text(max_size=40) | st.sampled_from(TEXTS))
def test_bytes_of_tokens_are_those_of_the_text(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False).tolist()
    spelled = b"".join(map(tokenizer.token_bytes, ids)).decode()
    # Some decoders leave out the space that was put before the text.
    assert tokenizer.decode(ids) in (spelled, spelled.removeprefix(" "))


def test_sentencepiece_spaces_and_bytes_are_spelled() -> None:
    vocabulary = {"▁cat": 0, "s": 1, "<0xE7>": 2, "<0x8C>": 3, "<0xAB>": 4, "<unk>": 5}
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    backend.decoder = decoders.Sequence(steps)
    tokenizer = Tokenizer(backend)
    ids = [1, 0, 1, 2, 3, 4]
    spelled = [tokenizer.token_bytes(each) for each in ids]
    assert spelled == [b"s", b" cat", b"s", b"\xe7", b"\x8c", b"\xab"]
    assert b"".join(spelled).decode() == backend.decode(ids) == "s cats猫"


def test_an_id_without_a_token_has_no_bytes(tokenizer: Tokenizer) -> None:
    assert tokenizer.token_bytes(10**6) == b""


@pytest.mark.parametrize("ids", [7, [7, 8], None])
def test_tokens_that_end_an_answer_are_those_of_all_files(tmp_path: Path, ids: object) -> None:
    directory = tiny_checkpoint(tmp_path, "qwen3", num_hidden_layers=1)
    own = Tokenizer.from_pretrained(directory).end_ids
    assert own == {json.loads((directory / "config.json").read_text())["eos_token_id"]}
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": ids}))
    more = {7} if ids == 7 else {7, 8} if isinstance(ids, list) else set()
    read = Tokenizer.from_pretrained(directory)
    assert read.end_ids == own | more
    assert Tokenizer.from_json(read.to_json()).end_ids == read.end_ids


@pytest.mark.parametrize("ids", ["no", {"a": 1}, -1])
def test_what_is_no_token_ends_no_answer_but_the_start(tmp_path: Path, ids: object) -> None:
    directory = tiny_checkpoint(tmp_path, "qwen3", num_hidden_layers=1)
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": ids}))
    with pytest.raises(ModelError, match=r"generation_config\.json: eos_token_id .* is not a token id"):
        Tokenizer.from_pretrained(directory)
