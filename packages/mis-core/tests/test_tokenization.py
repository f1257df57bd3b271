"""Loading tokenizers, labels, and how items become segments."""

import contextlib
import io
import itertools
import json
import logging
import os
import tempfile

import numpy as np
import pytest
from tokenizers import normalizers
from transformers import AutoTokenizer

from mis_core.errors import ModelError, RequestError
from mis_core.tokenization import Tokenizer, cut_segments, encoder, join_ids

pytestmark = pytest.mark.quick

SHARING = ["qwen", "llama3", "gpt2", "smollm", "o200k", "deepseek", "prefixed", "llama2", "mistral", "gemma", "unigram"]


@pytest.fixture(scope="module")
def directory(tmp_path_factory, small_tokenizer):
    path = tmp_path_factory.mktemp("checkpoint")
    small_tokenizer("llama3").save(str(path / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|begin_of_text|>"}
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    return path


def test_ids_are_those_of_transformers(directory):
    loaded = Tokenizer.from_pretrained(directory)
    reference = AutoTokenizer.from_pretrained(str(directory))
    query, items = "Does it rain \n", ["\nyes", "", " in the plains<|eot_id|>"]
    joined = loaded.join(query, items)
    assert joined.query.tolist() == reference(query)["input_ids"]
    for index, item in enumerate(items):
        assert joined.sequence(index).tolist() == reference(query + item)["input_ids"]


def test_saved_truncation_is_switched_off(small_tokenizer, tmp_path):
    backend = type(small_tokenizer("gpt2")).from_str(small_tokenizer("gpt2").to_str())
    backend.enable_truncation(4)
    backend.enable_padding(length=16)
    assert len(Tokenizer(backend).encode("one two three four five six seven eight nine ten eleven")) > 16


def test_missing_tokenizer_is_named(tmp_path):
    with pytest.raises(ModelError, match=r"tokenizer\.json is missing"):
        Tokenizer.from_pretrained(tmp_path)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize("content", ["{", "[]"])
def test_broken_file_is_named(directory, tmp_path, name, content):
    for path in directory.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / name).write_text(content)
    with pytest.raises(ModelError, match=name.replace(".", r"\.")) as caught:
        Tokenizer.from_pretrained(tmp_path)
    assert "\n" not in caught.value.message


def test_unusable_tokenizer_is_one_line(tmp_path):
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0"}')
    with pytest.raises(ModelError, match="cannot be read") as caught:
        Tokenizer.from_pretrained(tmp_path)
    assert "\n" not in caught.value.message
    assert str(tmp_path.parent) not in caught.value.message


def test_remote_code_is_never_run(directory, tmp_path):
    (tmp_path / "tokenizer.json").write_bytes((directory / "tokenizer.json").read_bytes())
    (tmp_path / "trap.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Trap: pass\n")
    settings = {"tokenizer_class": "Trap", "auto_map": {"AutoTokenizer": [None, "trap.Trap"]}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    with contextlib.suppress(ModelError):  # whether it is refused or read without the code is the library's choice
        Tokenizer.from_pretrained(tmp_path)
    assert not (tmp_path / "ran").exists()


def test_settings_name_no_files_and_no_sizes_of_a_model(directory, tmp_path):
    """What a class takes for a file to open, and numbers that `transformers` makes lists of, do not reach it."""
    (tmp_path / "tokenizer.json").write_bytes((directory / "tokenizer.json").read_bytes())
    os.mkfifo(tmp_path / "pipe")
    paths = dict.fromkeys(("vocab", "merges", "vocab_file", "tokenizer_file"), str(tmp_path / "pipe"))
    listed = {"init_inputs": [str(tmp_path / "pipe")], "fast_tokenizer_files": ["../tokenizer.4.json"]}
    settings = json.loads((directory / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings | paths | listed))
    sizes = {"model_type": "qwen3", "num_hidden_layers": 10**12, "num_labels": 10**12}
    (tmp_path / "config.json").write_text(json.dumps(sizes))
    assert Tokenizer.from_pretrained(tmp_path).to_json() == Tokenizer.from_pretrained(directory).to_json()


def test_a_folder_for_temporary_files_that_is_missing_is_named(directory, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    with pytest.raises(ModelError, match=r"without a folder for temporary files .* TMPDIR"):
        Tokenizer.from_pretrained(directory)


def test_a_warning_of_the_library_repeats_settings_escaped(directory, tmp_path, monkeypatch):
    for path in directory.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "\x1b[31mred"}))
    import transformers  # whose handler writes to what standard error was at first

    written = io.StringIO()
    (handler, *_) = logging.getLogger(transformers.__name__).handlers
    monkeypatch.setattr(handler, "stream", written)
    Tokenizer.from_pretrained(tmp_path)
    assert r"\x1b[31mred" in written.getvalue()
    assert "\x1b" not in written.getvalue()


def test_label_is_one_token_without_special_tokens(small_tokenizer):
    backend = small_tokenizer("llama3")
    assert Tokenizer(backend).label_id(" yes") == backend.token_to_id("Ġyes")
    assert Tokenizer(backend).label_id("<|eot_id|>") == backend.token_to_id("<|eot_id|>")


@pytest.mark.parametrize("label", ["", " yes no", "supercalifragilistic" * 10])
def test_label_of_other_lengths_is_refused(small_tokenizer, label):
    with pytest.raises(RequestError) as caught:
        Tokenizer(small_tokenizer("llama3")).label_id(label)
    assert (caught.value.code, caught.value.param) == ("label_not_single_token", "labels")
    assert len(caught.value.message) < 200


def test_empty_text_item_is_the_last_query_token(small_tokenizer):
    joined = Tokenizer(small_tokenizer("qwen")).join("Is it a dog", [""])
    assert joined.context_lens.tolist() == [len(joined.query) - 1]
    assert joined.item_tokens.tolist() == [joined.query[-1]]


def test_many_items_are_encoded_in_chunks(small_tokenizer, monkeypatch):
    loaded = Tokenizer(small_tokenizer("framed"))
    items = [f" number {index}" for index in range(7)]
    whole = loaded.join("One of these, maybe", items)
    monkeypatch.setattr(encoder, "_CHUNK_CHARACTERS", 200)
    chunked = loaded.join("One of these, maybe", items)
    np.testing.assert_array_equal(chunked.item_tokens, whole.item_tokens)
    np.testing.assert_array_equal(chunked.item_starts, whole.item_starts)


def test_work_without_sharing_is_bounded(small_tokenizer):
    loaded = Tokenizer(small_tokenizer("unknown"))
    loaded.join("a query", [" item"] * 8, max_characters=100)
    with pytest.raises(RequestError) as caught:
        loaded.join("a query", [" item"] * 9, max_characters=100)
    assert caught.value.code == "too_many_tokens"
    Tokenizer(small_tokenizer("qwen")).join("a query", [" item"] * 9, max_characters=110)  # shares the query


class Counting:
    """A tokenizer of the library that counts the characters it is given."""

    def __init__(self, backend):
        self._backend = backend
        self.characters = 0

    def __getattr__(self, name):
        return getattr(self._backend, name)

    def encode(self, text, **options):
        self.characters += len(text)
        return self._backend.encode(text, **options)

    def encode_batch_fast(self, texts, **options):
        self.characters += sum(map(len, texts))
        return self._backend.encode_batch_fast(texts, **options)


def test_a_long_tail_is_not_tokenised_again_for_many_items(small_tokenizer):
    """Dashes hold no cut, so that all of them would be tokenised with each item."""
    loaded = Tokenizer(small_tokenizer("qwen"))
    loaded._encoder._backend = counting = Counting(loaded._backend)
    query = "a " + "-" * 65_000
    with pytest.raises(RequestError) as caught:
        loaded.join(query, ["x"] * 1000)
    assert (caught.value.code, caught.value.param) == ("too_many_tokens", "items")
    assert counting.characters == len(query)  # once, to see that it fits at all
    counting.characters = 0
    loaded.join(query, ["x"] * 5, max_characters=400_000)
    assert counting.characters < 400_000 + 3 * len(query)
    joined = loaded.join("A question of ordinary length? Document", [f" {n}" for n in range(3000)])
    assert joined.item_starts[-1] >= 3000


@pytest.mark.parametrize("kind", SHARING)
def test_many_items_cost_their_own_text_behind_a_long_query(small_tokenizer, kind):
    loaded = Tokenizer(small_tokenizer(kind))
    loaded._encoder._backend = counting = Counting(loaded._backend)
    query = "Does the document answer the query? Answer yes or no. " * 400 + "\n\nDocument:"
    items = [f" {number} days of rain" for number in range(3000)]
    joined = loaded.join(query, items)
    assert joined.context_lens.min() >= len(joined.query) - 8
    assert counting.characters < sum(map(len, items)) + 3000 * len("query\n\nDocument:") + 4 * len(query)


def test_a_tokenizer_that_shares_nothing_is_told_once(small_tokenizer, caplog):
    Tokenizer(small_tokenizer("llama2"))
    assert not caplog.records
    Tokenizer(small_tokenizer("unknown"))
    (record,) = caplog.records
    assert record.name == "mis_core.tokenization.text_tokenizer"
    assert "together with its whole query" in record.getMessage()


def test_text_without_tokens_is_refused(small_tokenizer):
    backend = type(small_tokenizer("gpt2")).from_str(small_tokenizer("gpt2").to_str())
    backend.normalizer = normalizers.Strip()
    with pytest.raises(RequestError) as caught:
        Tokenizer(backend).join("  ", ["word", "  "])
    assert caught.value.code == "empty_query"


def test_ids_are_taken_as_they_are():
    joined = join_ids(np.array([7, 8, 9]), np.array([1, 2, 3]), np.array([1, 0, 2, 0]), item_first=False)
    assert joined.item_tokens.tolist() == [1, 9, 2, 3, 9]
    assert joined.item_starts.tolist() == [0, 1, 2, 4, 5]
    assert joined.context_lens.tolist() == [3, 2, 3, 2]
    assert joined.item_tokens.dtype == joined.item_starts.dtype == joined.context_lens.dtype == np.int32


def test_all_items_empty():
    joined = join_ids(np.array([7]), np.array([], np.int64), np.array([0, 0]), item_first=False)
    assert joined.item_tokens.tolist() == [7, 7]
    assert joined.context_lens.tolist() == [0, 0]


def test_item_first_shares_nothing():
    joined = join_ids(np.array([7, 8]), np.array([1, 2, 3]), np.array([1, 0, 2]), item_first=True)
    assert joined.query.size == 0
    assert [joined.sequence(index).tolist() for index in range(3)] == [[1, 7, 8], [7, 8], [2, 3, 7, 8]]
    assert joined.context_lens.tolist() == [0, 0, 0]


def test_longest_common_prefix_becomes_the_context():
    query = np.array([1, 2, 3, 4], np.int32)
    rows = [[1, 2, 3, 4, 5], [1, 2, 3, 4], [1, 2, 9, 4], [8], [1, 2], [1, 2, 3, 4, 5, 6]]
    tokens, lens = np.array(list(itertools.chain(*rows)), np.int32), np.array([len(row) for row in rows])
    joined = cut_segments(query, tokens, lens, head_len=0)
    assert joined.context_lens.tolist() == [4, 3, 2, 0, 1, 4]
    assert [joined.sequence(index).tolist() for index in range(len(rows))] == rows
