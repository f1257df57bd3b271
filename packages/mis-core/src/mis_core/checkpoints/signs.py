"""What a checkpoint says it was made for: names, tags, files of sentence-transformers. Nothing is decided here."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mis_core.checkpoints.files import Files
from mis_core.checkpoints.gguf_parts import model_stem
from mis_core.errors import ModelError, shown

_README = "README.md"
_MODULES = "modules.json"
_SENTENCE_TRANSFORMERS = "config_sentence_transformers.json"
_CARD_FIELDS = ("base_model", "model_name", "pipeline_tag", "tags")
_MAX_SIGNS = 64
_MAX_CHARACTERS = 200
_MAX_PROMPT = 1 << 16
_MAX_TITLE_AT = 1 << 16  # characters in which the title must be
_MAX_FRONT_MATTER = 1 << 16  # characters; YAML is slow to read
_MAX_ID = 1 << 31
_HUB_FOLDER = "models--"
_CODE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
_FRONT_MATTER = re.compile(r"\A\s*---[ \t]*\r?\n.*?^---[ \t]*$", re.MULTILINE | re.DOTALL)
_TITLE = re.compile(  # bounded, since a search of each tag to the end of the text takes the square of its length
    r"^#{1,6}[ \t]+(?P<marked>[^\n]+)|<h1[^>]{0,1000}>(?P<tagged>.{0,1000}?)</h1>", re.MULTILINE | re.DOTALL
)


@dataclass(frozen=True, slots=True)
class Sign:
    """One thing that a checkpoint says.

    Attributes:
        where: The file that says it, or `general.name` and the like of a GGUF file.
        text: The name, tag or title, of at most 200 characters.
    """

    where: str
    text: str


@dataclass(frozen=True, slots=True)
class Signs:
    """What a checkpoint says it was made for.

    Attributes:
        names: Names, tags and the title of its README.
        location: The folder's or file's name, or the hub's name of a folder in the hub's cache.
        modules: Classes that `modules.json` of sentence-transformers puts around the model, such as `LogitScore`.
        answer_ids: The tokens of an irrelevant and of a relevant document that a module reads, None where it reads only
            the other; None if no module reads tokens.
        rerank_prompt: What a reranker reads, with `{query}` and `{document}` in it, as llama.cpp's server has it of a
            GGUF file; None if nothing says so.
    """

    names: tuple[Sign, ...] = ()
    location: str = ""
    modules: tuple[str, ...] = ()
    answer_ids: tuple[int | None, int | None] | None = None
    rerank_prompt: str | None = None


NO_SIGNS = Signs()


def signs_of(path: Path, named: Iterable[tuple[str, object]], rerank_prompt: str | None) -> Signs:
    """Return the signs of a checkpoint without files of sentence-transformers.

    Args:
        path: The file or folder.
        named: Where something stands, and what: anything but a text is left out.
        rerank_prompt: As of `Signs`; of a longer one than 65,536 characters only the beginning is kept.
    """
    prompt = None if rerank_prompt is None else rerank_prompt[:_MAX_PROMPT]
    return Signs(_signs(named), location(path), rerank_prompt=prompt)


def directory_signs(directory: Path, files: Files) -> Signs:
    """Read the signs of a folder. A file that is missing or broken says nothing.

    Args:
        directory: The checkpoint.
        files: Opens its files.
    """
    listed = _read_json(directory / _MODULES, files)
    modules = [each.get("type") for each in (listed if isinstance(listed, list) else []) if isinstance(each, dict)]
    classes = tuple(_clean(each.rpartition(".")[2]) for each in modules if isinstance(each, str))
    names = _signs(_directory_names(directory, files))
    return Signs(names, location(directory), classes[:_MAX_SIGNS], _answer_ids(directory, files))


def _directory_names(directory: Path, files: Files) -> Iterator[tuple[str, object]]:
    yield "config.json", _model_name(_read_object(directory / "config.json", files).get("_name_or_path"))
    yield _SENTENCE_TRANSFORMERS, _read_object(directory / _SENTENCE_TRANSFORMERS, files).get("model_type")
    readme = directory / _README
    try:
        text = files.read(readme).decode("utf-8-sig", errors="replace")  # what cannot be read hides nothing else
    except ModelError:
        return
    matter = _FRONT_MATTER.match(text)
    begin = 0 if matter is None else matter.end()
    yield _README, _title(text[begin : begin + _MAX_TITLE_AT])
    if matter is None or matter.end() > _MAX_FRONT_MATTER:
        return
    import yaml  # whoever validates requests never needs it

    try:
        # Texts, lists and objects only: no types, which raise errors of their own, and no merges, which multiply.
        card = yaml.load(matter[0].strip().strip("-"), Loader=yaml.BaseLoader)
    except (yaml.YAMLError, ValueError, RecursionError):
        card = None
    for name in _CARD_FIELDS:
        value = card.get(name) if isinstance(card, dict) else None
        for each in value if isinstance(value, list) else [value]:
            yield _README, each


def _model_name(value: object) -> object:
    """Return a name as the hub has them, or the last part of a path, whose folders say nothing of the model."""
    if not isinstance(value, str):
        return value
    parts = value.rstrip("/").split("/")
    is_path = value.startswith(("/", ".", "~")) or len(parts) > 2
    return parts[-1] if is_path else value


def _title(text: str) -> str | None:
    """Return the first heading of a README without front matter, else its first line that is no HTML."""
    body = _CODE.sub("", text)
    found = _TITLE.search(body)
    if found is not None:
        return found["marked"] or re.sub(r"<[^>]*>", "", found["tagged"])
    return next((line for line in body.splitlines() if line.strip() and not line.lstrip().startswith("<")), None)


def _answer_ids(directory: Path, files: Files) -> tuple[int | None, int | None] | None:
    """Return what a `LogitScore` of sentence-transformers reads; its folder is named as `1_LogitScore`."""
    for path in sorted(directory.glob("[0-9]*_*/config.json"))[:_MAX_SIGNS]:
        config = _read_object(path, files)
        if "true_token_id" in config:
            return _id(config.get("false_token_id")), _id(config["true_token_id"])
    return None


def location(path: Path) -> str:
    """Return the name of a folder, or of a file without its suffix and the number of a part.

    Of a snapshot in the hub's cache it is `ORGANISATION/NAME`.
    """
    path = path.absolute()
    if path.parent.name == "snapshots" and path.parent.parent.name.startswith(_HUB_FOLDER):
        return _clean(path.parent.parent.name.removeprefix(_HUB_FOLDER).replace("--", "/"))
    return _clean(model_stem(path) if path.is_file() else path.name)


def _signs(named: Iterable[tuple[str, object]]) -> tuple[Sign, ...]:
    found = (Sign(where, _clean(text)) for where, text in named if isinstance(text, str))
    return tuple(dict.fromkeys(sign for sign in found if sign.text))[:_MAX_SIGNS]


def _clean(text: str) -> str:
    """Return a text that a message and a log line can show."""
    return shown(" ".join(text[: 4 * _MAX_CHARACTERS].split()), _MAX_CHARACTERS)


def _id(value: object) -> int | None:
    return value if isinstance(value, int) and 0 <= value < _MAX_ID else None


def _read_object(path: Path, files: Files) -> dict[str, Any]:
    value = _read_json(path, files)
    return value if isinstance(value, dict) else {}


def _read_json(path: Path, files: Files) -> object:
    try:
        return files.read_json(path)
    except ModelError:
        return None
