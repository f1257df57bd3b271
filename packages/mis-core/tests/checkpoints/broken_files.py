"""Every file of a checkpoint, broken in every way: `python broken_files.py BASE FOLDER < CASES` reads them one by one.

A case is the name of a file and what is wrong with it. The process has bounds of memory and time, so that a case which
takes either ends it and not the machine. For each it writes a line of JSON: what was said, or null if all was read.
"""

import json
import os
import resource
import shutil
import signal
import socket
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

SECONDS = 60
ADDRESS_SPACE = 6 << 30

Case = tuple[str, str]

ESCAPES = "\x1b]0;title\x07\x1b[31m\u202e" * 20

# What is no regular file, or not what its name says.
_FILE: dict[str, Callable[[Path], object]] = {
    "missing": lambda path: None,
    "empty": lambda path: path.touch(),
    "folder": lambda path: path.mkdir(),
    "pipe": os.mkfifo,
    "socket": lambda path: socket.socket(socket.AF_UNIX).bind(os.path.relpath(path)),
    "link to itself": lambda path: path.symlink_to(path.name),
    "link to nothing": lambda path: path.symlink_to("nothing"),
    "link to a folder": lambda path: path.symlink_to("."),
    "link to an endless device": lambda path: path.symlink_to("/dev/zero"),
    "link to a pipe": lambda path: (os.mkfifo(path.with_suffix(".pipe")), path.symlink_to(path.with_suffix(".pipe"))),
    "link to a file of the kernel": lambda path: path.symlink_to("/proc/self/mem"),
    "a terabyte": lambda path: (path.touch(), os.truncate(path, 1 << 40)),
    "zeros": lambda path: path.write_bytes(bytes(1 << 20)),
    "bytes": lambda path: path.write_bytes(bytes(range(256)) * 9),
    "nested": lambda path: path.write_text('{"a":' * 100_000),
    "many values": lambda path: path.write_text("[" + "[]," * 5_500_000 + "[]]"),
    "unclosed tags": lambda path: path.write_text("<h1>" * 100_000 + "<h1" * 100_000),
    "surrogate": lambda path: path.write_text(r'{"a": "\ud800", "architectures": ["\udfff"]}'),
    "long number": lambda path: path.write_text(f'{{"num_hidden_layers": {"9" * 10_000}}}'),
    **{f"JSON {text}": lambda path, text=text: path.write_text(text) for text in ("[]", "null", "5", '"a"', "{}")},
}
# What a value may be turned into.
_VALUES: dict[str, Any] = {
    "null": None,
    "-1": -1,
    "0": 0,
    "2^31": 2**31,
    "10^9": 10**9,
    "2^70": 2**70,
    "10^400": 10**400,
    "1.5": 1.5,
    "infinity": float("inf"),
    "true": True,
    "list": [[]],
    "object": {"a": {}},
    "numbers": [-1, 2**70],
    "escapes": ESCAPES,
}


def cases(base: Path) -> Iterator[Case]:
    """Yield every case for the files of a checkpoint."""
    for path in sorted(path for path in base.rglob("*") if path.is_file()):
        name = str(path.relative_to(base))
        yield from ((name, fault) for fault in (*_FILE, "truncated"))
        if path.suffix == ".json":
            yield from ((name, f"{key}: {value}") for key in _keys(json.loads(path.read_text())) for value in _VALUES)
        if path.suffix == ".safetensors":
            yield from ((name, fault) for fault in _HEADERS)


def _keys(content: Any) -> Iterator[str]:
    """Yield where values stand: those of the first two levels, a few of a vocabulary."""
    if isinstance(content, list):
        yield from map(str, range(len(content)))
        return
    yield from [key for key in content if key.isidentifier()][:40]
    inner = ((key, value) for key, value in content.items() if isinstance(value, dict | list))
    for key, value in inner:
        yield from (f"{key}/{place}" for place in list(value if isinstance(value, dict) else range(len(value)))[:8])
    if isinstance(content.get("model"), dict):
        yield "model/vocab/a"
        yield "added_tokens/0/id"
        yield "added_tokens/0/content"


def _header(header: Any, size: int | None = None) -> Callable[[Path], object]:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return lambda path: path.write_bytes(struct.pack("<Q", len(text) if size is None else size) + text + bytes(64))


def _one(**fields: Any) -> dict[str, Any]:
    return {"model.norm.weight": {"dtype": "F32", "shape": [16], "data_offsets": [0, 64]} | fields}


_HEADERS: dict[str, Callable[[Path], object]] = {
    "header of 2^63 bytes": _header(b"{}", 2**63),
    "header longer than the file": _header(b"{}", 10**6),
    "nested header": _header(b"[" * 100_000),
    "overflowing shape": _header(_one(shape=[2**62, 4])),
    "negative shape": _header(_one(shape=[-1])),
    "offsets behind the end": _header(_one(data_offsets=[0, 2**60])),
    "unknown type": _header(_one(dtype="F3")),
    "small type": _header(_one(dtype="F4", shape=[128])),
    "name with escapes": _header({ESCAPES: _one()["model.norm.weight"]}),
}


def break_file(path: Path, fault: str) -> None:
    """Break one file of a copy of a checkpoint, whose files are links."""
    content = path.read_bytes()
    path.unlink()
    if fault == "truncated":
        path.write_bytes(content[: len(content) // 2])
    elif fault in _FILE:
        _FILE[fault](path)
    elif fault in _HEADERS:
        _HEADERS[fault](path)
    else:
        place, _, value = fault.rpartition(": ")
        changed = holder = json.loads(content)
        *way, last = (int(step) if step.isdigit() else step for step in place.split("/"))
        for step in way:
            holder = holder[step] if isinstance(holder, list) else holder[str(step)]
        holder[last if isinstance(holder, list) else str(last)] = _VALUES[value]
        path.write_text(json.dumps(changed))


def read_all(path: Path) -> None:
    """Read everything that serving a model reads, and use what was read."""
    import jax.numpy as jnp

    from mis_core.checkpoints import open_checkpoint
    from mis_core.config import EngineConfig
    from mis_core.models.config import read_model_config
    from mis_core.models.weights import load_decoder
    from mis_core.tokenization import Tokenizer

    open_checkpoint(path).signs()
    load_decoder(path, read_model_config(path), jnp.dtype("float32"), progress=False)
    tokenizer = Tokenizer.of(EngineConfig(model=str(path)))
    tokenizer.decode(tokenizer.encode("Is it a cat? é", add_special_tokens=False))
    assert all(0 <= token < 2**31 for token in tokenizer.end_ids)


def what_it_says(base: Path, folder: Path, case: Case) -> str | None:
    """Read a broken copy; return the one sentence, or None if all was read.

    Raises:
        Exception: what should be a sentence.
    """
    from mis_core.errors import ModelError

    shutil.copytree(base, folder, copy_function=os.symlink)
    signal.alarm(SECONDS)
    try:
        with suppress(OSError):  # no file may have this name
            break_file(folder / case[0], case[1])
        read_all(folder / case[0] if case[0].endswith(".gguf") else folder)
    except ModelError as error:
        return error.message
    finally:
        signal.alarm(0)
        shutil.rmtree(folder)
    return None


def _peak_kilobytes() -> int:
    """Return the most memory that this program has had; `getrusage` counts what its starter had as well."""
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM:")).split()[1])


def main() -> None:
    """Read cases from standard input."""
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    base, folder = map(Path, sys.argv[1:])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries may print
    for line in sys.stdin:
        case = json.loads(line)
        try:
            told = {"said": what_it_says(base, folder, case)}
        except BaseException as error:
            told = {"raised": f"{type(error).__name__}: {error}"[:300]}
        megabytes = _peak_kilobytes() >> 10
        answers.write(json.dumps({"case": case, "megabytes": megabytes, **told}) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
