"""Relevance is what the code of the recipe computes, alone and beside anything else; of other recipes there is none."""

import asyncio
import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from scipy.special import expit, logit, softmax

from mis_testing.options import SMALL_ENGINE
from mis_testing.oracle import PointwiseOracle
from mis_testing.tolerances import TINY_PROBABILITIES

if TYPE_CHECKING:
    from mis_core import Engine

pytestmark = pytest.mark.parity

QUERY = "which city is the capital of France?"
INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
DOCUMENTS = ["Paris is the capital of France.", "It rains in winter.", "", "The battery lasts 12 hours. " * 40, "猫 👍"]
MAX_LENGTH = 200


def card_scores(path: Path) -> list[float]:
    """The code of the model card, a document at a time, so that nothing is padded."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(path)
    model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    prefix = (
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
        'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
    )
    suffix = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    prefix_tokens = tokenizer.encode(prefix, add_special_tokens=False)
    suffix_tokens = tokenizer.encode(suffix, add_special_tokens=False)
    yes, no = tokenizer.convert_tokens_to_ids("yes"), tokenizer.convert_tokens_to_ids("no")
    scores = []
    for document in DOCUMENTS:
        pair = f"<Instruct>: {INSTRUCTION}\n<Query>: {QUERY}\n<Document>: {document}"
        most = MAX_LENGTH - len(prefix_tokens) - len(suffix_tokens)
        body = tokenizer(pair, add_special_tokens=False, truncation=True, max_length=most)["input_ids"]
        with torch.no_grad():
            logits = model(torch.tensor([prefix_tokens + body + suffix_tokens])).logits[:, -1, :]
        both = torch.stack([logits[:, no], logits[:, yes]], dim=1)
        scores.append(torch.nn.functional.log_softmax(both, dim=1)[:, 1].exp().item())
    return scores


def named(path: Path, name: str, folder: Path) -> Path:
    """Copy a checkpoint, which says that it was made of another one."""
    shutil.copytree(path, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"_name_or_path": name}))
    return folder


def mxbai_scores(path: Path) -> list[float]:
    """`MxbaiRerankV2` of https://github.com/mixedbread-ai/mxbai-rerank at 8e709dc, a document at a time."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(path)
    model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()

    def get_input_ids(text: str) -> list[int]:
        return tokenizer(text, return_tensors=None, add_special_tokens=False)["input_ids"]

    task_prompt = (
        "You are a search relevance expert who evaluates how well documents match search queries. For each "
        "query-document pair, carefully analyze the semantic relationship between them, then provide your binary "
        "relevance judgment (0 for not relevant, 1 for relevant).\nRelevance:"
    )
    prefix = (
        "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
        "<|im_start|>user\n"
    )
    suffix = "<|im_end|>\n<|im_start|>assistant\n"
    yes_loc, no_loc = get_input_ids("1")[0], get_input_ids("0")[0]
    differences = []
    for document in DOCUMENTS:
        item = get_input_ids(f"query: {QUERY}") + get_input_ids("\n") + get_input_ids(f"document: {document}")
        ids = get_input_ids(prefix) + item + get_input_ids("\n") + get_input_ids(task_prompt) + get_input_ids(suffix)
        with torch.no_grad():
            logits = model(torch.tensor([ids])).logits[0, -1]
        differences.append((logits[yes_loc] - logits[no_loc]).item())
    return differences


@pytest.fixture
def reranker(checkpoint: Path, engine_factory: "Callable[..., Engine]") -> "Engine":
    return engine_factory(checkpoint, **SMALL_ENGINE | {"context_length": MAX_LENGTH})


def test_relevance_is_the_model_cards(checkpoint: Path, reranker: "Engine") -> None:
    ranking = reranker.rerank(QUERY, DOCUMENTS)
    scores = {each.index: each.relevance_score for each in ranking.results}
    wanted = card_scores(checkpoint)
    assert np.std(wanted) > 0.01
    np.testing.assert_allclose([scores[index] for index in range(len(DOCUMENTS))], wanted, atol=TINY_PROBABILITIES)
    assert ranking.meta.truncated == (3,)


def test_relevance_of_mxbai_is_the_sigmoid_of_its_own_score(
    checkpoint_factory: Callable[..., Path], engine_factory: "Callable[..., Engine]", tmp_path: Path
) -> None:
    path = named(checkpoint_factory("qwen2"), "mixedbread-ai/mxbai-rerank-base-v2", tmp_path / "model")
    ranking = engine_factory(path, **SMALL_ENGINE).rerank(QUERY, DOCUMENTS)
    scores = {each.index: each.relevance_score for each in ranking.results}
    wanted = mxbai_scores(path)
    assert np.std(wanted) > 0.1
    np.testing.assert_allclose(logit([scores[index] for index in range(len(DOCUMENTS))]), wanted, atol=1e-3)
    assert ranking.recipe == "mxbai-rerank-v2"


def test_a_document_has_the_same_bits_alone_and_among_others(reranker: "Engine") -> None:
    alone = {
        index: reranker.rerank(QUERY, [document]).results[0].relevance_score for index, document in enumerate(DOCUMENTS)
    }

    def disturb(number: int) -> None:
        if number % 2:
            reranker.rerank(f"query {number}", DOCUMENTS[:number])
        else:
            reranker.score([1, 2, number], [[5], [6, 7]], [3, 4])

    with ThreadPoolExecutor(4) as pool:
        crowd = [pool.submit(disturb, number) for number in range(1, 17)]
        together = reranker.rerank(QUERY, [*DOCUMENTS, "one more"])
        for each in crowd:
            each.result()
    scores = {each.index: each.relevance_score for each in together.results}
    assert {index: scores[index] for index in alone} == alone


def test_the_asynchronous_twin_answers_the_same(reranker: "Engine") -> None:
    options: dict[str, Any] = {"top_n": 2, "return_documents": True}
    assert asyncio.run(reranker.rerank_async(QUERY, DOCUMENTS, **options)).results == (
        reranker.rerank(QUERY, DOCUMENTS, **options).results
    )


@pytest.mark.parametrize("labels", [("relevant",), ("no", "yes")], ids=["sigmoid", "softmax"])
def test_a_head_is_read_behind_the_same_prompt(
    labels: tuple[str, ...],
    checkpoint_factory: Callable[..., Path],
    engine_factory: "Callable[..., Engine]",
    oracle_factory: Callable[..., PointwiseOracle],
) -> None:
    from transformers import AutoTokenizer

    path = checkpoint_factory("qwen3", head_labels=labels)
    tokenizer: Any = AutoTokenizer.from_pretrained(path)
    prompts = [
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
        'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
        f"<Instruct>: {INSTRUCTION}\n<Query>: {QUERY}\n<Document>: {document}"
        "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
        for document in DOCUMENTS
    ]
    sequences = [tokenizer.encode(prompt, add_special_tokens=False) for prompt in prompts]
    values = oracle_factory(path, "float32").head_values(sequences)
    wanted = expit(values[:, 0]) if len(labels) == 1 else softmax(values, axis=1)[:, 1]
    assert np.std(wanted) > 0.01
    engine = engine_factory(path, **SMALL_ENGINE)
    scores = {each.index: each.relevance_score for each in engine.rerank(QUERY, DOCUMENTS).results}
    np.testing.assert_allclose([scores[index] for index in range(len(DOCUMENTS))], wanted, atol=TINY_PROBABILITIES)
