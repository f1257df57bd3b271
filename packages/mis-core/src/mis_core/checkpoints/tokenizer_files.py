"""The tokenizer of a directory, which `transformers` reads, and what of the directory it sees.

`transformers` opens whatever a tokenizer's class and settings name, and makes a whole configuration of `config.json`.
So it is given a folder of its own: links to files that have been checked, and settings without what it has no use for.
"""

import contextlib
import json
import logging
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import tokenizers

from mis_core.checkpoints.charsmap import check_charsmaps
from mis_core.checkpoints.checkpoint import StoredTokenizer
from mis_core.checkpoints.components import components
from mis_core.checkpoints.files import Files, is_there
from mis_core.checkpoints.growth import check_growth
from mis_core.errors import ModelError, shown

MAX_ID = 1 << 22
"""Ids of tokens are below it; the largest published vocabularies have 262,144 tokens."""

_ONE_OF = ("tokenizer.json", "tokenizer.model", "vocab.json")
_AS_THEY_ARE = (*_ONE_OF, "tekken.json", "tiktoken.model", "vocab.txt", "merges.txt", "added_tokens.json")
_SETTINGS = ("tokenizer_config.json", "special_tokens_map.json")
_TEMPLATE = "chat_template.jinja"
_CONFIG = "config.json"
# What of `config.json` says which class a tokenizer has; numbers of it would be expanded to lists.
_CONFIG_KEYS = ("model_type", "model_name", "tokenizer_class", "transformers_version")
# Settings that the classes take for files to open, wherever those are.
_NAMES_OF_FILES = ("vocab", "merges", "init_inputs", "tokenizer_object", "fast_tokenizer_files")
_IDS_OF_ENDS = (_CONFIG, "generation_config.json")
_NO_ID = f"not a token id from 0 to {MAX_ID - 1:,}"
_REASON_CHARACTERS = 200


def read_tokenizer(directory: Path, files: Files) -> StoredTokenizer:
    """Read a tokenizer, never with remote code.

    Args:
        directory: The checkpoint.
        files: Opens its files.

    Raises:
        ModelError: a file is missing or broken; it is named.
    """
    if not any(is_there(directory / name) for name in _ONE_OF):
        raise ModelError(f"Model {directory.name!r} has no tokenizer: the file tokenizer.json is missing.")
    end_ids = _end_ids(directory, files)
    try:
        with tempfile.TemporaryDirectory(prefix="mis-tokenizer-") as folder:
            _fill(Path(folder), directory, files)
            loaded = _load(folder, directory)
            eos_id = loaded.eos_token_id
    except OSError as error:
        raise ModelError(
            f"The tokenizer of model {directory.name!r} cannot be read without a folder for temporary files "
            f"({error.strerror}); name one in the environment variable TMPDIR."
        ) from None
    if not is_there(directory / _ONE_OF[0]):
        check_made(directory, loaded.backend_tokenizer)
    template = loaded.chat_template
    if isinstance(template, dict):  # several by name
        template = template.get("default")
    if not isinstance(template, str | None):
        raise ModelError(f"{directory / _SETTINGS[0]}: chat_template is not a text.")
    special_tokens = {name: str(token) for name, token in loaded.special_tokens_map.items()}
    end_ids |= set() if eos_id is None else {eos_id}
    return StoredTokenizer(loaded.backend_tokenizer, special_tokens, frozenset(end_ids), template)


def check_made(path: Path, backend: tokenizers.Tokenizer) -> None:
    """Refuse what `tokenizer.json` may not say of a tokenizer that is made of another file.

    Raises:
        ModelError: a map of its normalizer is broken, or it multiplies texts.
    """
    parts = {"normalizer": backend.normalizer, "pre_tokenizer": backend.pre_tokenizer, "decoder": backend.decoder}
    made = {name: None if part is None else json.loads(part.__getstate__()) for name, part in parts.items()}
    check_charsmaps(path, made["normalizer"])
    check_growth(path, made)


def _load(folder: str, directory: Path) -> Any:
    from transformers import AutoTokenizer  # slow to import; requests of token ids never need it

    try:
        with _shown_messages():
            loaded: Any = AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
            loaded.backend_tokenizer  # noqa: B018  not every class has one
    except BaseException as error:  # every class fails in its own way; all mean the same to the user
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":  # of Rust
            raise
        reason = str(error).replace(folder, directory.name).strip()
        raise ModelError(
            f"The tokenizer of model {directory.name!r} cannot be read from its tokenizer.json and "
            f"tokenizer_config.json: {type(error).__name__}: {shown(reason.partition(chr(10))[0], _REASON_CHARACTERS)}"
        ) from None
    return loaded


def _fill(folder: Path, directory: Path, files: Files) -> None:
    """Put what a tokenizer consists of into a folder.

    Raises:
        ModelError: a file is broken, or no regular file.
    """
    for name in filter(lambda name: is_there(directory / name), (*_AS_THEY_ARE, _TEMPLATE)):
        path = directory / name
        files.check(path)
        if name.endswith(".json"):
            _check_tokens(path, files.read_object(path))
        (folder / name).symlink_to(path.absolute())
    for name in filter(lambda name: is_there(directory / name), _SETTINGS):
        path = directory / name
        settings = files.read_object(path)
        _check_ids(path, _object(settings.get("added_tokens_decoder")))
        left = {key: value for key, value in settings.items() if not _names_files(key)}
        (folder / name).write_text(json.dumps(left))
    if is_there(directory / _CONFIG):
        config = files.read_object(directory / _CONFIG)
        left = {key: config[key] for key in _CONFIG_KEYS if isinstance(config.get(key), str)}
        (folder / _CONFIG).write_text(json.dumps(left))


def _names_files(setting: str) -> bool:
    return setting in _NAMES_OF_FILES or setting.endswith(("_file", "_files"))


def _check_tokens(path: Path, content: dict[str, Any]) -> None:
    """Refuse ids that no vocabulary has, for which tables would be made, and what the library cannot take."""
    if path.name in ("vocab.json", "added_tokens.json"):
        _check_ids(path, content.values())
    if path.name != "tokenizer.json":
        return
    vocabulary = _object(content.get("model")).get("vocab")
    _check_ids(path, _object(vocabulary).values())
    added = content.get("added_tokens")
    _check_ids(path, (_object(token).get("id", 0) for token in (added if isinstance(added, list) else [])))
    _check_ids(path, _ids_put_in(content.get("post_processor")))
    check_charsmaps(path, content.get("normalizer"))
    check_growth(path, content)


def _check_ids(path: Path, ids: Iterable[object]) -> None:
    for token in ids:
        number = int(token) if isinstance(token, str) and token.isdecimal() and len(token) < 20 else token
        if not _is_id(number):
            raise ModelError(f"{path}: {shown(repr(token), 40)} is {_NO_ID}.")


def _ids_put_in(post_processor: object) -> Iterator[object]:
    """Yield the ids that a post-processor puts into texts."""
    for part in components(post_processor):
        for token in _object(part.get("special_tokens")).values():
            ids = _object(token).get("ids")
            yield from ids if isinstance(ids, list) else []
        for name in ("cls", "sep"):
            pair = part.get(name)
            yield from pair[1:] if isinstance(pair, list) else []


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MAX_ID


def _end_ids(directory: Path, files: Files) -> set[int]:
    """Return the tokens that end an answer by the model's config files, whose tokenizer may name another."""
    found: set[int] = set()
    for path in (directory / name for name in _IDS_OF_ENDS if is_there(directory / name)):
        ids = files.read_object(path).get("eos_token_id")
        if ids is None:
            continue
        for token in ids if isinstance(ids, list) else [ids]:
            if not _is_id(token):
                raise ModelError(f"{path}: eos_token_id {shown(repr(token), 40)} is {_NO_ID}.")
            found.add(token)
    return found


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


@contextlib.contextmanager
def _shown_messages() -> Iterator[None]:
    """Let what `transformers` logs, which repeats settings, be shown as terminals and logs may show it."""
    handlers = list(logging.getLogger("transformers").handlers)
    for handler in handlers:
        handler.addFilter(_show)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(_show)


def _show(record: logging.LogRecord) -> bool:
    record.msg, record.args = shown(record.getMessage(), 1000), ()
    return True
