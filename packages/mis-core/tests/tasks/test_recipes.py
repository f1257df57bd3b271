"""Which recipe a checkpoint gets, by what it says of itself, and that prompts are those of the recipe's own code."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer

from mis_core.checkpoints import open_checkpoint
from mis_core.config import RERANK_RECIPES, EngineConfig
from mis_core.errors import ModelError, RequestError
from mis_core.tasks.limits import Limits
from mis_core.tasks.recipes.recipe import RECIPES, recipes_digest
from mis_core.tasks.recipes.recognition import describe_rerank, rerank_recipe
from mis_core.tasks.rerank.task import parse_rerank
from mis_core.tasks.served import tasks_of
from mis_core.tokenization import Tokenizer
from mis_testing import tiny_checkpoint
from mis_testing.gguf_file import write_gguf

Checkpoints = Callable[..., Path]
CROSS_ENCODER = {"config_sentence_transformers.json": {"model_type": "CrossEncoder"}}
LOGIT_SCORE = {"type": "sentence_transformers.cross_encoder.modules.logit_score.LogitScore", "path": "1_LogitScore"}
POOLING = {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"}


def card(title: str, **metadata: Any) -> dict[str, Any]:
    """A model card; JSON is YAML."""
    lines = [f"{name}: {json.dumps(value)}" for name, value in metadata.items()]
    return {"README.md": "\n".join(["---", *lines, "---", "", title, "", "Beats bge-reranker-v2-gemma and zerank-1."])}


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    sizes: dict[str, Any] = {"num_hidden_layers": 1}
    heads = {name: tiny_checkpoint(folder / f"{name}-head", name, head_labels=("a",), **sizes) for name in ("qwen2",)}
    plain = {name: tiny_checkpoint(folder / name, name, **sizes) for name in ("qwen3", "qwen2", "llama")}
    return plain | {f"{name} head": path for name, path in heads.items()}


@pytest.fixture
def make(originals: dict[str, Path], tmp_path: Path) -> Checkpoints:
    """Makes a copy of a checkpoint that says something of itself."""

    def make(family: str, files: dict[str, Any] | None = None, name: str | None = None, folder: str = "model") -> Path:
        path = tmp_path / folder
        shutil.copytree(originals[family], path)
        if name is not None:
            config = json.loads((path / "config.json").read_text())
            (path / "config.json").write_text(json.dumps(config | {"_name_or_path": name}))
        for file, content in (files or {}).items():
            (path / file).parent.mkdir(exist_ok=True)
            text = content if isinstance(content, str | bytes) else json.dumps(content)
            (path / file).write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return make


def model(path: Path, **options: Any) -> tuple[Tokenizer, Limits]:
    """What an engine makes of a checkpoint, without loading it."""
    config = EngineConfig(model=str(path), **options)
    checkpoint = open_checkpoint(path)
    settings = checkpoint.settings()
    limits = Limits(
        context_length=4000,
        vocab_size=5000,
        architecture=settings["architectures"][0],
        head_labels=tuple(settings.get("id2label", {}).values()) if "ForSeq" in settings["architectures"][0] else (),
        signs=checkpoint.signs(),
        rerank_recipe=config.rerank_recipe,
    )
    return Tokenizer.from_pretrained(path, rerank_template=config.rerank_file), limits


def answers(path: Path, false: str | None, true: str) -> dict[str, Any]:
    """The file of `LogitScore`, which names the tokens that answer."""
    tokenizer: Any = AutoTokenizer.from_pretrained(path)
    ids = [None if word is None else tokenizer.convert_tokens_to_ids(word) for word in (false, true)]
    return {"1_LogitScore/config.json": {"true_token_id": ids[1], "false_token_id": ids[0]}}


def test_names_of_recipes_are_those_of_the_option() -> None:
    assert tuple(RECIPES) == RERANK_RECIPES


QWEN3_CARD = card("# Qwen3-Reranker-0.6B", base_model=["Qwen/Qwen3-0.6B-Base"], pipeline_tag="text-ranking")


@pytest.mark.parametrize(
    ("recipe", "family", "files", "name"),
    [
        ("qwen3-reranker", "qwen3", {}, None),
        ("qwen3-reranker", "qwen3", QWEN3_CARD, None),
        ("qwen3-reranker", "qwen3", card("# Qwen3-8B", pipeline_tag="text-generation", base_model="Qwen/Q"), None),
        ("qwen3-reranker", "qwen3", card("# Our reranker", base_model="Qwen/Qwen3-Reranker-4B"), None),
        ("qwen3-reranker", "qwen3", card("# Our reranker"), "/data/Qwen3-Reranker-0.6B/"),
        ("qwen3-reranker", "qwen3", {}, "/data/rerank-data/Qwen3-8B"),
        ("mxbai-rerank-v2", "qwen2", {}, "mixedbread-ai/mxbai-rerank-large-v2"),
        ("mxbai-rerank-v2", "qwen2", {}, "/data" + "/very-long-names-of-folders" * 20 + "/mxbai-rerank-base-v2"),
        ("mxbai-rerank-v2", "qwen2", card("<h1 align=center>mxbai-rerank-base-v2</h1>"), None),
        ("mxbai-rerank-v2", "qwen2", card("# x", base_model="mixedbread-ai/mxbai-rerank-base-v2", tags=["a"]), None),
        ("mxbai-rerank-v2", "qwen2 head", {}, "mixedbread-ai/mxbai-rerank-base-v2"),
        ("generic", "qwen2", {}, None),
        ("generic", "llama", card("# SmolLM2", tags=["safetensors"]), "HuggingFaceTB/SmolLM2-135M-Instruct"),
        ("generic", "llama", {}, "acme/my-lora-rank1"),
        ("generic", "llama", {"README.md": "---\ntags: !!bool foo\nother: !!int ''\n---\n"}, None),
        ("generic", "llama", {"README.md": "---\nbroken: [\n---\n", "modules.json": "[", "1_A/config.json": "1"}, None),
        ("generic", "qwen2 head", card("# legal-reranker", pipeline_tag="text-ranking") | CROSS_ENCODER, None),
    ],
)
def test_what_a_checkpoint_says_chooses_its_recipe(
    make: Checkpoints, recipe: str, family: str, files: dict[str, Any], name: str | None
) -> None:
    tokenizer, limits = model(make(family, files, name))
    parsed = parse_rerank({"query": "q", "documents": ["d"]}, tokenizer, limits)
    assert (parsed.recipe, describe_rerank(tokenizer, limits)) == (recipe, f"recipe {recipe}")


@pytest.mark.parametrize(
    ("family", "files", "name", "said"),
    [
        ("qwen3", {}, "zeroentropy/zerank-2", "config.json says 'zeroentropy/zerank-2'"),
        ("qwen3", card("# Releasing zeroentropy/zerank-2", base_model="Qwen/Qwen3-4B"), None, "README.md says 'Rel"),
        ("qwen3", {"README.md": "\nThis is zerank-1-small.\n"}, None, "README.md says 'This is"),
        ("qwen3", card("# zerank-3", base_model="Qwen/Qwen3-Reranker-4B"), None, "README.md says 'zerank-3'"),
        ("qwen3", {"README.md": b"---\ntags: [text-ranking]\n---\n# l\xe9gal\n"}, None, "text-ranking"),
        ("qwen3", {"README.md": b"# zerank-2\nby Ren\xe9\n"}, None, "README.md says 'zerank-2'"),
        ("qwen3", {"README.md": "# zerank-2\n" + "It ranks. " * 200_000}, None, "README.md says 'zerank-2'"),
        ("llama", {}, "jhu-clsp/rank1-7b", "rank1-7b"),
        ("qwen3", {}, "jinaai/jina-reranker-v3", "jina-reranker-v3"),
        ("qwen3", card("# legal", pipeline_tag="text-ranking"), None, "text-ranking"),
        ("qwen3", card("# legal", tags=["legal", "reranker"]), None, "'reranker'"),
        ("qwen3", CROSS_ENCODER, None, "CrossEncoder"),
        ("qwen3", {"modules.json": [{"type": "a.Transformer"}, LOGIT_SCORE]}, None, "modules.json says 'LogitScore'"),
        ("qwen3", {"modules.json": [{"type": "a.Transformer"}, POOLING]}, None, "modules.json says 'Pooling'"),
        ("llama", {}, "nvidia/llama-3.2-nemoretriever-500m-rerank-v2", "nemoretriever"),
        ("llama", {}, "acme/reranker-1b", "acme/reranker-1b"),
        ("qwen2", {}, "BAAI/bge-reranker-v2-minicpm", "bge-reranker"),
        ("qwen2 head", {}, "jinaai/jina-reranker-v3", "jina-reranker"),
        ("qwen2", card("# Qwen3-Reranker-0.6B"), "mixedbread-ai/mxbai-rerank-base-v2", "several recipes"),
        ("llama", {}, "distilled/Qwen3-Reranker-llama", "needs <|im_start|>"),
    ],
)
def test_a_sign_of_another_recipe_is_refused_with_the_list(
    make: Checkpoints, family: str, files: dict[str, Any], name: str | None, said: str
) -> None:
    tokenizer, limits = model(make(family, files, name))
    with pytest.raises(RequestError) as caught:
        parse_rerank({"query": "q", "documents": ["d"]}, tokenizer, limits)
    message = caught.value.message
    assert (caught.value.code, caught.value.param) == ("task_not_supported", "model")
    assert said in message
    assert said.startswith("needs") or ("--rerank-template" in message and all(name in message for name in RECIPES))
    assert describe_rerank(tokenizer, limits) == f"none. {message}"
    # Everything else is served.
    assert tasks_of(tokenizer, limits) == tuple(
        task
        for task in tasks_of(tokenizer, replace(limits, signs=Limits(context_length=1, vocab_size=1).signs))
        if task != "rerank"
    )


@pytest.mark.parametrize(
    ("folder", "recipe"),
    [("mxbai-rerank-base-v2", "mxbai-rerank-v2"), ("my-reranker", "generic"), ("zerank-2", None)],
)
def test_the_folder_name_counts_if_nothing_inside_names_a_recipe(
    make: Checkpoints, folder: str, recipe: str | None
) -> None:
    tokenizer, limits = model(make("qwen2", folder=folder))
    if recipe is None:
        assert "zerank-2" in describe_rerank(tokenizer, limits)
    else:
        assert rerank_recipe(tokenizer, limits).name == recipe


def test_a_name_inside_wins_over_the_folders(make: Checkpoints) -> None:
    tokenizer, limits = model(make("qwen2", {}, "mixedbread-ai/mxbai-rerank-base-v2", folder="not-zerank-2"))
    assert rerank_recipe(tokenizer, limits).name == "mxbai-rerank-v2"


def test_a_folder_of_the_hubs_cache_has_the_hubs_name(make: Checkpoints, tmp_path: Path) -> None:
    snapshot = tmp_path / "hub/models--zeroentropy--zerank-2/snapshots/0123abc"
    snapshot.parent.mkdir(parents=True)
    make("qwen3").rename(snapshot)
    assert "'zeroentropy/zerank-2'" in describe_rerank(*model(snapshot))


@pytest.mark.parametrize(
    ("family", "name", "words", "recipe"),
    [
        ("qwen3", None, ("no", "yes"), "qwen3-reranker"),
        ("qwen3", "Qwen/Qwen3-Reranker-0.6B", ("no", "yes"), "qwen3-reranker"),
        ("qwen2", "mixedbread-ai/mxbai-rerank-base-v2", ("0", "1"), "mxbai-rerank-v2"),
        ("qwen3", None, (None, "yes"), None),
        ("qwen3", None, ("0", "1"), None),
        ("qwen3", "Qwen/Qwen3-Reranker-0.6B", ("yes", "no"), None),
        ("qwen2", None, ("no", "yes"), None),
    ],
)
def test_tokens_that_a_module_reads_must_be_the_recipes(
    make: Checkpoints, originals: dict[str, Path], family: str, name: str | None, words: Any, recipe: str | None
) -> None:
    tokenizer, limits = model(make(family, CROSS_ENCODER | answers(originals[family], *words), name))
    if recipe is not None:
        assert rerank_recipe(tokenizer, limits).name == recipe
        return
    with pytest.raises(RequestError, match=r"--rerank-template") as caught:
        rerank_recipe(tokenizer, limits)
    assert caught.value.code == "task_not_supported"


@pytest.mark.parametrize(
    ("name", "recipe"),
    [
        ("Zerank 2", None),
        ("Jina Reranker v3", None),
        ("Qwen3 Reranker 0.6B", "qwen3-reranker"),
        (None, "qwen3-reranker"),
    ],
)
def test_the_name_in_a_gguf_file_counts(
    originals: dict[str, Path], tmp_path: Path, name: str | None, recipe: str | None
) -> None:
    tokenizer, limits = model(write_gguf(tmp_path / "model.gguf", originals["qwen3"], general_name=name))
    if recipe is None:
        assert f"general.name says {name!r}" in describe_rerank(tokenizer, limits)
    else:
        assert rerank_recipe(tokenizer, limits).name == recipe


LLAMA_CPPS = (  # what llama.cpp's converter writes for Qwen3-Reranker
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
    "<|im_start|>user\n<Instruct>: Given a web search query, retrieve relevant passages that answer the query\n"
    "<Query>: {query}\n<Document>: {document}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
)


def test_the_prompt_in_a_gguf_file_must_be_that_of_the_recipe(originals: dict[str, Path], tmp_path: Path) -> None:
    def made(prompt: str, family: str = "qwen3", **options: Any) -> tuple[Tokenizer, Limits]:
        fields = {"tokenizer.chat_template.rerank": prompt}
        return model(write_gguf(tmp_path / "model.gguf", originals[family], fields=fields), **options)

    assert rerank_recipe(*made(LLAMA_CPPS)).name == "qwen3-reranker"
    others = [LLAMA_CPPS.replace("passages", "candidates"), LLAMA_CPPS.replace("<think>\n\n</think>\n\n", "")]
    for prompt in [*others, LLAMA_CPPS * 999]:
        said = describe_rerank(*made(prompt))
        assert "chat_template.rerank is not the prompt of the recipe qwen3-reranker." in said, prompt
        assert "--rerank-template" in said
        assert rerank_recipe(*made(prompt, rerank_template="qwen3-reranker")).name == "qwen3-reranker"
    assert "not the prompt of the recipe generic" in describe_rerank(*made(LLAMA_CPPS, "llama"))


def test_the_operators_choice_wins(make: Checkpoints, tmp_path: Path) -> None:
    path = make("qwen3", {}, "zeroentropy/zerank-2")
    for name in ("qwen3-reranker", "mxbai-rerank-v2", "generic"):
        assert rerank_recipe(*model(path, rerank_template=name)).name == name
    file = tmp_path / "my.jinja"
    file.write_text("{{ query }}: {{ document }}")
    tokenizer, limits = model(path, rerank_template=str(file))
    assert parse_rerank({"query": "q", "documents": ["d"]}, tokenizer, limits).recipe == "custom"
    with pytest.raises(RequestError, match="classification head"):
        rerank_recipe(*model(path, rerank_template="plain"))
    with pytest.raises(ModelError, match="takes a file, or one of qwen3-reranker, mxbai-rerank-v2, generic, plain"):
        model(path, rerank_template="qwen3-rerank")


def test_a_recipe_needs_its_words(originals: dict[str, Path]) -> None:
    with pytest.raises(RequestError, match=r"mxbai-rerank-v2 needs <\|im_start\|>, <\|im_end\|> as single tokens"):
        rerank_recipe(*model(originals["llama"], rerank_template="mxbai-rerank-v2"))


@pytest.mark.parametrize(("family", "recipe"), [("qwen3", "qwen3-reranker"), ("qwen2", "mxbai-rerank-v2")])
def test_text_around_each_document_counts_as_request_tokens(
    originals: dict[str, Path], family: str, recipe: str
) -> None:
    tokenizer, limits = model(originals[family], rerank_template=recipe)
    parsed = parse_rerank({"query": "q", "documents": ["d"] * 50}, tokenizer, limits)
    (joined,) = parsed.requests
    tokens = len(joined.query) + len(joined.item_tokens)
    parse_rerank({"query": "q", "documents": ["d"] * 50}, tokenizer, replace(limits, max_request_tokens=tokens))
    with pytest.raises(RequestError) as caught:
        parse_rerank({"query": "q", "documents": ["d"] * 50}, tokenizer, replace(limits, max_request_tokens=tokens - 1))
    assert caught.value.code == "too_many_tokens"


def published_mxbai(path: Path, query: str, document: str, instruction: str | None) -> list[int]:
    """`MxbaiRerankV2.prepare_inputs` of https://github.com/mixedbread-ai/mxbai-rerank at 8e709dc; nothing is cut."""
    tokenizer: Any = AutoTokenizer.from_pretrained(path)

    def ids(text: str) -> list[int]:
        return tokenizer(text, add_special_tokens=False)["input_ids"]

    asked = f"query: {query}" if instruction is None else f"instruction: {instruction}\nquery: {query}"
    task = (
        "You are a search relevance expert who evaluates how well documents match search queries. For each "
        "query-document pair, carefully analyze the semantic relationship between them, then provide your binary "
        "relevance judgment (0 for not relevant, 1 for relevant).\nRelevance:"
    )
    prefix = (
        "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
        "<|im_start|>user\n"
    )
    parts = [prefix, asked, "\n", f"document: {document}", "\n", task, "<|im_end|>\n<|im_start|>assistant\n"]
    return [token for part in parts for token in ids(part)]


@pytest.mark.parametrize("instruction", [None, "Find code"])
def test_mxbais_prompt_has_the_ids_of_its_own_code(make: Checkpoints, instruction: str | None) -> None:
    path = make("qwen2", {}, "mixedbread-ai/mxbai-rerank-base-v2")
    tokenizer, limits = model(path)
    query, documents = "Do {cats} sleep?", ["Cats sleep.", "", " It {query} rains.\n", "猫 sleeps 👍!?"]
    parsed = parse_rerank({"query": query, "documents": documents, "instruction": instruction}, tokenizer, limits)
    (request,) = parsed.requests
    sequences = [
        np.concatenate([request.query[:seen], request.item_tokens[begin:end]]).tolist()
        for seen, begin, end in zip(
            request.context_lens, request.item_starts[:-1], request.item_starts[1:], strict=True
        )
    ]
    assert sequences == [published_mxbai(path, query, document, instruction) for document in documents]
    theirs: Any = AutoTokenizer.from_pretrained(path)
    assert request.label_ids.tolist() == [theirs.convert_tokens_to_ids(["0", "1"])]
    assert len(request.query) > 30  # shared


def test_long_documents_of_pieces_are_cut_but_not_the_suffix(make: Checkpoints) -> None:
    path = make("qwen2", {}, "mixedbread-ai/mxbai-rerank-base-v2")
    tokenizer, limits = model(path)
    whole = len(published_mxbai(path, "q", "", None))
    tight = replace(limits, context_length=whole + 10)
    parsed = parse_rerank({"query": "q", "documents": ["short", "The price is 1999.95. " * 50]}, tokenizer, tight)
    (request,) = parsed.requests
    lens = request.context_lens + np.diff(request.item_starts)
    assert parsed.truncated == (1,)
    assert lens.max() <= whole + 10
    tail = published_mxbai(path, "q", "", None)[-40:]
    assert request.item_tokens[-40:].tolist() == tail
    narrow = replace(limits, context_length=whole - 20)
    with pytest.raises(RequestError, match=f"The prompt with the query has {whole} tokens"):
        parse_rerank({"query": "q", "documents": ["d"]}, tokenizer, narrow)


def test_the_digest_of_recipes_changes_with_any_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    before = recipes_digest()
    monkeypatch.setitem(RECIPES, "generic", replace(RECIPES["generic"], instruction="Be kind"))
    assert recipes_digest() != before
