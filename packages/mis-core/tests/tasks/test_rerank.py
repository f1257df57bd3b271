"""Rerank on the host: which prompts the engine is given, and what its values become."""

import dataclasses
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit, softmax
from transformers import AutoTokenizer

from mis_core.errors import RequestError
from mis_core.requests import EngineOutput
from mis_core.tasks.limits import Limits
from mis_core.tasks.rerank.ranking import BilledUnits, RankedText, Ranking
from mis_core.tasks.rerank.task import ParsedRerank, finish_rerank, parse_rerank
from mis_core.tokenization import Meter, Tokenizer
from mis_core.tokenization.chat_template import ChatTemplate
from mis_testing import tiny_checkpoint

QWEN3 = Limits(context_length=4000, vocab_size=5000, architecture="Qwen3ForCausalLM")
LLAMA = Limits(context_length=4000, vocab_size=5000, architecture="LlamaForCausalLM")
DOCUMENTS = ["Cats sleep.", "", " It rains.\n", "猫 sleeps 👍", "Cats sleep."]

# Written out from the model card, as nothing else says what the prompt is.
CARD = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
    "<Instruct>: Given a web search query, retrieve relevant passages that answer the query\n"
    "<Query>: Do cats sleep?\n<Document>: {}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {name: tiny_checkpoint(folder / name, name, num_hidden_layers=1) for name in ("qwen3", "qwen2", "llama")}


@pytest.fixture(scope="module")
def models(folders: dict[str, Path]) -> dict[str, Tokenizer]:
    return {name: Tokenizer.from_pretrained(folder) for name, folder in folders.items()}


def parse(tokenizer: Tokenizer, limits: Limits = QWEN3, **fields: Any) -> ParsedRerank:
    body = {"query": "Do cats sleep?", "documents": DOCUMENTS, **fields}
    return pickle.loads(pickle.dumps(parse_rerank(body, tokenizer, limits, ("m",))))


def prompts(parsed: ParsedRerank, tokenizer: Tokenizer) -> list[str]:
    return [tokenizer.decode(row) for row in sequences(parsed)]


def sequences(parsed: ParsedRerank) -> list[list[int]]:
    (request,) = parsed.requests
    return [
        np.concatenate([request.query[:seen], request.item_tokens[begin:end]]).tolist()
        for seen, begin, end in zip(
            request.context_lens, request.item_starts[:-1], request.item_starts[1:], strict=True
        )
    ]


def finish(parsed: ParsedRerank, logits: Any) -> Ranking:
    return finish_rerank(parsed, (EngineOutput(np.array(logits, np.float32), None, cached_tokens=3),))


def refused(code: str, tokenizer: Tokenizer, limits: Limits = QWEN3, **fields: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        parse(tokenizer, limits, **fields)
    assert caught.value.code == code
    return caught.value


def test_the_prompt_is_the_model_cards_byte_for_byte(models: dict[str, Tokenizer], folders: dict[str, Path]) -> None:
    parsed = parse(models["qwen3"])
    theirs = AutoTokenizer.from_pretrained(folders["qwen3"])
    wanted = [theirs(CARD.format(text), add_special_tokens=False)["input_ids"] for text in DOCUMENTS]
    assert sequences(parsed) == wanted
    assert parsed.requests[0].label_ids.tolist() == [theirs.convert_tokens_to_ids(["no", "yes"])]
    assert len(parsed.requests[0].query) > 60  # shared


def test_the_instruction_is_a_field(models: dict[str, Tokenizer]) -> None:
    (prompt,) = prompts(
        parse(models["qwen3"], documents=[{"text": "d", "title": "t"}], instruction="Find cats"), models["qwen3"]
    )
    card = CARD.replace("Given a web search query, retrieve relevant passages that answer the query", "Find cats")
    assert prompt == card.format("d")


@pytest.mark.parametrize("name", ["qwen2", "llama"])
def test_other_models_read_these_texts_in_their_chat_template(
    models: dict[str, Tokenizer], folders: dict[str, Path], name: str
) -> None:
    theirs = AutoTokenizer.from_pretrained(folders[name])
    system, user = (part.partition("\n")[2] for part in CARD.split("<|im_end|>")[:2])
    user = user.partition("\n")[2]
    wanted = [
        theirs.apply_chat_template(
            [
                {"role": "system", "content": system},
                {"role": "user", "content": user.format(text)},
            ],
            add_generation_prompt=True,
            enable_thinking=False,
            return_dict=True,
        )["input_ids"]
        for text in DOCUMENTS[3:]
    ]
    assert sequences(parse(models[name], LLAMA, documents=DOCUMENTS[3:])) == wanted


def test_the_operators_template_wins(folders: dict[str, Path], tmp_path: Path) -> None:
    path = tmp_path / "rerank.jinja"
    path.write_text("{{ eos_token }}Q: {{ query }} ({{ instruction }})\nD: {{ document }}\nA:", "utf-8")
    tokenizer = Tokenizer.from_pretrained(folders["qwen3"], rerank_template=path)
    tokenizer = Tokenizer.from_json(tokenizer.to_json())
    (prompt,) = prompts(parse(tokenizer, documents=["{{ d }} "], instruction="i"), tokenizer)
    assert prompt == "<|im_end|>Q: Do cats sleep? (i)\nD: {{ d }} \nA:"


@pytest.mark.parametrize(
    "source", ["{{ query }}", "{{ query }}{{ document }}{{ document }}", "{{ document }}", "{% bad"]
)
def test_a_template_that_does_not_fit_is_refused(models: dict[str, Tokenizer], source: str) -> None:
    tokenizer = Tokenizer(models["llama"]._backend, rerank_template=ChatTemplate(source))
    refused("task_not_supported", tokenizer)


def test_without_any_template_the_error_names_the_flag(models: dict[str, Tokenizer]) -> None:
    bare = Tokenizer(models["llama"]._backend)
    assert "--rerank-template" in refused("task_not_supported", bare, LLAMA).message


def test_a_head_reads_query_and_document(models: dict[str, Tokenizer]) -> None:
    bare = Tokenizer(models["llama"]._backend)
    limits = Limits(context_length=400, vocab_size=5000, head_labels=("relevance",))
    parsed = parse(bare, limits, documents=["a", "b"])
    assert prompts(parsed, bare) == [f"<|begin_of_text|>Do cats sleep?\n{text}" for text in "ab"]
    assert [each.relevance_score for each in finish(parsed, [[-1], [2]]).results] == pytest.approx(expit([2, -1]))
    two = Limits(context_length=400, vocab_size=5000, head_labels=("no", "yes"), architecture="Qwen3ForSequence")
    parsed = parse(models["qwen3"], two, documents=["d"])
    assert prompts(parsed, models["qwen3"]) == [CARD.format("d")]
    assert parsed.requests[0].label_ids.tolist() == [[0, 1]]
    for names, rows in ((("Yes", "No"), [1, 0]), (("yes", "maybe"), [0, 1]), (("LABEL_0", "LABEL_1"), [0, 1])):
        for tokenizer, architecture in ((models["qwen3"], "Qwen3ForSequence"), (bare, "LlamaForSequence")):
            limits = dataclasses.replace(two, head_labels=names, architecture=architecture)
            assert parse(tokenizer, limits, documents=["d"]).requests[0].label_ids.tolist() == [rows]
    three = Limits(context_length=400, vocab_size=5000, head_labels=("a", "b", "c"))
    refused("task_not_supported", bare, three)


def test_results_are_sorted_and_ties_keep_their_order(models: dict[str, Tokenizer]) -> None:
    logits = [[0, 1], [0, 2], [0, 1], [3, 0], [0, 2]]
    parsed = parse(models["qwen3"], top_n=99, return_documents=True)
    ranking = finish(parsed, logits)
    assert [each.index for each in ranking.results] == [1, 4, 0, 2, 3]
    wanted = softmax(np.array(logits, float), axis=1)[:, 1]
    assert [each.relevance_score for each in ranking.results] == pytest.approx(sorted(wanted, reverse=True))
    assert [each.document for each in ranking.results] == [RankedText(DOCUMENTS[index]) for index in (1, 4, 0, 2, 3)]
    assert ranking.usage.prompt_tokens == ranking.usage.total_tokens == parsed.requests[0].prompt_tokens
    assert ranking.usage.prompt_tokens_details.cached_tokens == 3
    assert ranking.meta.billed_units.search_units == 1
    best = finish(parse(models["qwen3"], top_n=2), logits).results
    assert [(each.index, each.document) for each in best] == [(1, None), (4, None)]
    with pytest.raises(FloatingPointError):
        finish(parsed, [[0, np.nan], *logits[1:]])


def test_documents_that_cannot_be_scored_fail_alone(models: dict[str, Tokenizer]) -> None:
    documents = ["a", 7, {"text": "b"}, {"text": None}, "\ud800"]
    refused("invalid_documents", models["qwen3"], documents=documents)
    parsed = parse(models["qwen3"], documents=documents, on_error="item", return_documents=True)
    ranking = finish(parsed, [[1, 0], [0, 1]])
    assert [(each.index, each.document) for each in ranking.results] == [(2, RankedText("b")), (0, RankedText("a"))]
    assert [(error.index, error.code) for error in ranking.errors] == [(n, "invalid_documents") for n in (1, 3, 4)]
    refused("invalid_documents", models["qwen3"], documents=[7, 8], on_error="item")


def test_long_documents_are_cut_and_named(models: dict[str, Tokenizer]) -> None:
    tokenizer = models["qwen3"]
    long = "The price is 1999.95 dollars 👍. " * 100
    tight = Limits(context_length=150, vocab_size=5000, architecture="Qwen3ForCausalLM")
    parsed = parse(tokenizer, tight, documents=["short", long, "猫" * 400], return_documents=True)
    assert parsed.truncated == (1, 2)
    assert max(map(len, sequences(parsed))) <= 150 < max(map(len, sequences(parse(tokenizer, documents=[long]))))
    before, after = CARD.format("\0").split("\0")
    for prompt, text in zip(prompts(parsed, tokenizer), ["short", long, "猫" * 400], strict=True):
        assert prompt.startswith(before)
        assert prompt.endswith(after)
        assert text.startswith(prompt[len(before) : -len(after)])
    assert parsed.texts == {0: "short", 1: long, 2: "猫" * 400}
    capped = parse(tokenizer, documents=["short", long], max_tokens_per_doc=5)
    assert capped.truncated == (1,)
    assert prompts(capped, tokenizer)[1] == before + tokenizer.decode(tokenizer.encode(long)[:5]) + after
    refused("context_length_exceeded", tokenizer, Limits(context_length=80, vocab_size=5000), query="why " * 90)
    few = Limits(context_length=4000, vocab_size=5000, max_text_characters=1000)
    assert refused("too_many_tokens", tokenizer, few, documents=[long]).param == "documents"


def test_cut_documents_do_not_tokenise_a_long_query_again(models: dict[str, Tokenizer]) -> None:
    whole = models["qwen3"]
    limits = Limits(context_length=1500, vocab_size=5000, architecture="Qwen3ForCausalLM")
    query = "cat " * 600  # what is left holds no whole document
    while len(sequences(parse(whole, query=query, documents=["a"]))[0]) < 1490:
        query += "cat "
    documents = [f"the moon rises over {number} hills and sets behind as many others" for number in range(200)]
    meter = Meter()
    parsed = parse(whole.metered(meter), limits, query=query, documents=documents)
    assert len(parsed.truncated) == 200
    assert max(map(len, sequences(parsed))) <= 1500
    assert meter.cost < 25 * len(query)


@given(text=st.text(max_size=60), most=st.integers(0, 40))
def test_a_cut_text_has_no_more_tokens_and_is_a_beginning(tokenizer: Tokenizer, text: str, most: int) -> None:
    (cut,) = tokenizer.cut_after("", [text], [most])
    assert text.startswith(cut)
    assert len(tokenizer.encode(cut, add_special_tokens=False)) <= most
    if len(tokenizer.encode(text, add_special_tokens=False)) <= most:
        assert cut == text


@pytest.fixture(scope="module", params=["qwen3", "llama"])
def tokenizer(request: pytest.FixtureRequest, models: dict[str, Tokenizer]) -> Tokenizer:
    return models[request.param]


def test_words_of_several_tokens_are_no_labels() -> None:
    letters = tokenizers.Tokenizer(tokenizers.models.BPE({"y": 0, "e": 1, "s": 2, "n": 3, "o": 4}, []))
    tokenizer = Tokenizer(letters, ChatTemplate("{{ messages[1].content }}"))
    assert "single tokens" in refused("task_not_supported", tokenizer, LLAMA, documents=["yes"]).message


@pytest.mark.parametrize(("documents", "units"), [(1, 1), (100, 1), (101, 2), (200, 2), (201, 3)])
def test_a_hundred_documents_are_a_search_unit(documents: int, units: int) -> None:
    assert BilledUnits.of(documents).search_units == units
