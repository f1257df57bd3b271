"""Where tokens begin in a text, against the offsets that transformers gives."""

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import processors
from transformers import PreTrainedTokenizerFast

from mis_core.tokenization import Tokenizer

KINDS = ["qwen", "llama3", "framed", "gpt2", "deepseek", "prefixed", "llama2", "mistral", "gemma", "unigram", "bert"]
TEXTS = ["e\u0301 cafe\u0301  is open", " 猫😀 é\n\n  x ", "<|im_end|> yes<|eot_id|>", "", "  ", "Do cats purr?"]
texts = st.sampled_from(TEXTS) | st.text(max_size=30) | st.text("ae\u0301 Ġ\n猫", max_size=20)


def copy_of(backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_str(backend.to_str())


@pytest.fixture(scope="module", params=KINDS)
def backend(request: pytest.FixtureRequest, small_tokenizer) -> tokenizers.Tokenizer:
    return copy_of(small_tokenizer(request.param))


@given(text=texts)
def test_tokens_begin_where_transformers_says(backend: tokenizers.Tokenizer, text: str) -> None:
    loaded, reference = Tokenizer(copy_of(backend)), PreTrainedTokenizerFast(tokenizer_object=copy_of(backend))
    encoded = reference(text, return_offsets_mapping=True, return_special_tokens_mask=True)
    ids = encoded["input_ids"]
    if loaded.encode(text).tolist() != ids:  # the text begins with BOS, and gets no other here
        assert ids[0] == ids[1]
        assert loaded.encode(text).tolist() == ids[1:]
        return
    starts = loaded.starts(text).tolist()
    assert len(starts) == len(ids)
    told = zip(starts, encoded["offset_mapping"], encoded["special_tokens_mask"], strict=True)
    own = [place for place, is_added in enumerate(encoded["special_tokens_mask"]) if not is_added]
    for place, (start, (begin, _), is_added) in enumerate(told):
        if not is_added:
            assert start == begin
        elif own:
            assert start == (0 if place < own[0] else len(text))
    assert loaded.starts(text, add_special_tokens=False).tolist() == [starts[place] for place in own]


@given(text=texts)
@pytest.mark.parametrize("prefix", [False, True])
@pytest.mark.parametrize("kind", ["qwen", "gpt2", "prefixed"])
def test_spaces_trimmed_off_the_offsets_count(small_tokenizer, kind: str, prefix: bool, text: str) -> None:
    plain, trimming = copy_of(small_tokenizer(kind)), copy_of(small_tokenizer(kind))
    plain.post_processor = processors.ByteLevel(trim_offsets=False, add_prefix_space=prefix)
    trimming.post_processor = processors.ByteLevel(trim_offsets=True, add_prefix_space=prefix)
    assert Tokenizer(trimming).starts(text).tolist() == Tokenizer(plain).starts(text).tolist()


@pytest.mark.parametrize("text", ["<|begin_of_text|>yes", "yes", ""])
def test_a_text_with_its_own_bos_gets_no_other(small_tokenizer, text: str) -> None:
    loaded = Tokenizer(copy_of(small_tokenizer("framed")))
    starts = loaded.starts(text).tolist()
    assert len(starts) == len(loaded.encode(text))
    assert starts[-1] == (0 if not text else len(text) if text == "yes" else len(text) - 3)
