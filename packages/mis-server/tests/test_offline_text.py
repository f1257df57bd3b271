"""Lines: how files hold them, and what of a file is none."""

import gzip
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mis_core.errors import ConfigError
from mis_server.offline import asked, inputs, text
from mis_server.offline.query import OfflineQuery
from mis_server.offline.text import Lines, zstd

ENCODINGS = {
    "plain": lambda content: content,
    "gzip": gzip.compress,
    "gzip in members": lambda content: gzip.compress(content[:5]) + gzip.compress(content[5:]),
    "zstd": zstd.compress,
    "zstd in frames": lambda content: (
        b"\x53\x2a\x4d\x18\x02\0\0\0ab" + zstd.compress(content[:5]) + zstd.compress(content[5:])
    ),
}


def lines_of(content: bytes) -> list[bytes]:
    return list(Lines(io.BytesIO(content), "some", "items"))


# No line of JSON begins as an encoding does.
LINE = st.binary(max_size=40).map(lambda line: b'"' + line.replace(b"\n", b""))
BLANK = st.sampled_from([b"", b" ", b"\r", b"\t ", text.BYTE_ORDER_MARK])


@given(
    lines=st.lists(LINE | BLANK, max_size=20),
    blank=st.lists(BLANK, max_size=4),
    ends=st.booleans(),
    encoding=st.sampled_from(sorted(ENCODINGS)),
)
def test_lines_come_as_they_are_and_blank_ones_at_the_end_do_not(
    lines: list[bytes], blank: list[bytes], ends: bool, encoding: str
) -> None:
    while lines and lines[-1].strip(b" \t\r\n\xef\xbb\xbf") == b"":
        lines.pop()
    content = b"\n".join([*lines, *blank]) + (b"\n" if ends else b"")
    read = Lines(io.BytesIO(ENCODINGS[encoding](content)), "some", "items")
    got = [line.rstrip(b"\n") for line in read]
    assert [line.strip(b" \t\r\xef\xbb\xbf") for line in got] == [line.strip(b" \t\r\xef\xbb\xbf") for line in lines]
    assert [line for line in got if line.startswith(b'"')] == [line for line in lines if line.startswith(b'"')]
    plain = Lines(io.BytesIO(content), "some", "items")
    assert (read.count, len(list(plain))) == (len(lines), len(lines))
    assert read.digest() == plain.digest()


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_line_that_is_too_long_is_an_error_of_its_row(monkeypatch: pytest.MonkeyPatch, encoding: str) -> None:
    for module in (text, asked):
        monkeypatch.setattr(module, "MAX_LINE_BYTES", 100)
    monkeypatch.setattr(text, "_SKIPPED_BYTES", 7)
    fitting = b'"' + b"x" * 98 + b'"'
    read = lines_of(
        ENCODINGS[encoding](b"\n".join([fitting, b'"' + fitting, b" " * 500 + b"1", b'"c"', fitting + b" "]))
    )
    rows = [OfflineQuery(query="q").read_line(line) for line in read]
    assert [row.error and row.error["code"] for row in rows] == [
        None, "request_too_large", "request_too_large", None, "request_too_large",
    ]  # fmt: skip
    assert rows[3].items == ["c"]
    assert max(map(len, read)) <= 101


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (b"BZh91AY", "bzip2"),
        ('"a"'.encode("utf-16-be"), None),
        ('\ufeff"a"'.encode("utf-16-be"), "UTF-16"),
        ('"a"'.encode("utf-32"), "UTF-32"),
        (b"PK\x03\x04", "ZIP"),
        (b"\x04\x22\x4d\x18", "LZ4"),
    ],
)
def test_other_encodings_are_refused_by_name(content: bytes, name: str | None) -> None:
    if name is None:  # without a mark nothing says so, and each line is an error of its own
        assert lines_of(content) == [content]
        return
    with pytest.raises(ConfigError, match=f"some is {name}.*, which is not read; make it UTF-8, plain or compressed"):
        lines_of(content)


def test_a_copy_ends_before_the_disk_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = type("Disk", (), {"free": 1024**3 + 2_500_000, "total": 1024**4})
    monkeypatch.setattr(inputs.shutil, "disk_usage", lambda _: disk)
    copy = io.BytesIO()
    copy.fileno = lambda: -1
    inputs._copy(io.BytesIO(b"x" * 2_000_000), copy, "some", "items")
    disk.free = 1024**3 + 500_000
    with pytest.raises(ConfigError, match=r"some is copied to .*, which has too little free space for it"):
        inputs._copy(io.BytesIO(b"x" * 2_000_000), copy, "some", "items")
