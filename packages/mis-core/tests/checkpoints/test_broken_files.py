"""Broken and hostile files are refused by one sentence, within bounds of time and memory."""

import json
import subprocess
import sys
from pathlib import Path

import broken_files
import pytest
from broken_files import Case, cases

from mis_testing import tiny_checkpoint
from mis_testing.gguf_file import write_gguf

MEGABYTES = 1500  # of which JAX, PyTorch's absence and a tiny model take 600


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint that has every kind of file."""
    folder = tiny_checkpoint(tmp_path_factory.mktemp("base") / "model", "smollm3", num_hidden_layers=2, shards=2)
    (folder / "1_LogitScore").mkdir()
    tokens = json.loads((folder / "tokenizer.json").read_text())
    vocabulary, merges = tokens["model"]["vocab"], tokens["model"]["merges"]
    written = {
        "generation_config.json": {"eos_token_id": [0, 1]},
        "special_tokens_map.json": {"eos_token": {"content": "a", "lstrip": False}},
        "added_tokens.json": {"a": 3},
        "vocab.json": vocabulary,
        "modules.json": [{"type": "a.b.LogitScore", "path": "1_LogitScore"}],
        "config_sentence_transformers.json": {"model_type": "CrossEncoder"},
        "1_LogitScore/config.json": {"true_token_id": 3, "false_token_id": 4},
    }
    for name, content in written.items():
        (folder / name).write_text(json.dumps(content))
    write_gguf(folder / "model.gguf", tiny_checkpoint(folder.parent / "other", num_hidden_layers=1))
    pairs = (merge if isinstance(merge, str) else " ".join(merge) for merge in merges)
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *pairs]))
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}")
    (folder / "README.md").write_text("---\ntags: [a]\n---\n# A model\n")
    return folder


def read(base: Path, folder: Path, listed: list[Case]) -> list[dict]:
    """Read cases in a process of its own, and return what it tells of each."""
    command = [sys.executable, broken_files.__file__, str(base), str(folder / "broken")]
    done = subprocess.run(
        command, input="\n".join(map(json.dumps, listed)), capture_output=True, text=True, timeout=1800, check=False
    )
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(told) == len(listed), f"{listed[len(told)]} ended the process:\n{done.stderr[-2000:]}"
    return told


def check(told: list[dict]) -> None:
    """Assert that each case was read or refused by a sentence, within the bounds."""
    raised = [(each["case"], each["raised"]) for each in told if "raised" in each]
    assert not raised, "\n".join(map(str, raised))
    for each in told:
        said = each["said"]
        assert each["megabytes"] < MEGABYTES, each
        assert said is None or (said.isprintable() and len(said) <= 1000), each


# A case of each mechanism; the sentence is a part of what is said, None where a file says nothing but is not needed.
MECHANISMS: list[tuple[Case, str | None]] = [
    (("config.json", "missing"), "missing; a model directory needs a config.json"),
    (("config.json", "link to an endless device"), "is a device, not a file"),
    (("config.json", "nested"), "nested too deeply"),
    (("config.json", "many values"), "values; --max-checkpoint-file-bytes raises the limit"),
    (("config.json", "surrogate"), "an unpaired surrogate"),
    (
        ("config.json", "num_hidden_layers: 10^9"),
        "num_hidden_layers = 1000000000, but the weights have 3 layers of 6",
    ),
    (("config.json", "max_position_embeddings: 10^400"), "max_position_embeddings = 1000000"),
    (("config.json", "architectures: escapes"), "architectures must be a list"),
    (("config.json", "architectures/0: escapes"), r"\x1b]0;title\x07\x1b[31m\u202e"),
    (("config.json", "eos_token_id: -1"), "config.json: eos_token_id -1 is not a token id"),
    (("generation_config.json", "eos_token_id: 2^70"), "generation_config.json: eos_token_id 1180591620717411303424"),
    (("generation_config.json", "pipe"), "is a named pipe, not a file"),
    (("tokenizer.json", "link to itself"), "Too many levels of symbolic links"),
    (("tokenizer.json", "a terabyte"), "1,099,511,627,776 bytes, where a tokenizer may have 268,435,456"),
    (("tokenizer.json", "model/vocab/a: 2^31"), "tokenizer.json: 2147483648 is not a token id"),
    (("tokenizer.json", "added_tokens/0/id: 2^31"), "tokenizer.json: 2147483648 is not a token id"),
    (("tokenizer_config.json", "nested"), "nested too deeply"),
    (("special_tokens_map.json", "folder"), "is a folder, not a file"),
    (("added_tokens.json", "link to a pipe"), "is a named pipe, not a file"),
    (("model.safetensors.index.json", "nested"), "nested too deeply"),
    (("model-00001-of-00002.safetensors", "pipe"), "is a named pipe, not a file"),
    (("model-00001-of-00002.safetensors", "truncated"), "truncated or not a safetensors file"),
    (("model-00001-of-00002.safetensors", "name with escapes"), "tensor model.embed_tokens.weight is missing"),
    (("README.md", "pipe"), None),
    (("README.md", "unclosed tags"), None),
    (("modules.json", "nested"), None),
    (("model.gguf", "pipe"), "is neither a directory nor a GGUF file"),
    (("model.gguf", "a terabyte"), "not a GGUF file, and not a model directory"),
    (("model.gguf", "truncated"), "a truncated or broken GGUF file"),
]


def test_each_mechanism_is_refused_by_its_sentence(base: Path, tmp_path: Path) -> None:
    told = read(base, tmp_path, [case for case, _ in MECHANISMS])
    check(told)
    for each, (case, sentence) in zip(told, MECHANISMS, strict=True):
        assert (each["said"] is None) if sentence is None else (sentence in (each["said"] or "")), (case, each["said"])


@pytest.mark.full
def test_any_broken_file_is_read_or_refused_in_one_sentence(base: Path, tmp_path: Path) -> None:
    check(read(base, tmp_path, list(cases(base))))
