"""The file of calibrations, and which of them a request gets."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from mis_core.calibration import Calibrations, Entry, Figures, Identity, ModelIdentity, Scaling, Threshold
from mis_core.calibration.calibrations import common_beginning
from mis_core.errors import ConfigError

MODEL = ModelIdentity(weights="w", tokenizer="t", dtype="float32", quantization="none")
FIGURES = Figures(log_loss=0.5, brier=0.3, accuracy=0.8)
NEVER = Threshold(accuracy=0.95, observed=0, confidence=None, coverage=0, at_least=0)
SCORE = Identity(task="score", labels=((1,), (2, 3)), item_first=False)


def entry(identity: Identity = SCORE, temperature: float = 2.0, begins: tuple[int, ...] = ()) -> Entry:
    figures = {"raw": FIGURES, "calibrated": FIGURES, "act": NEVER, "review": NEVER}
    scaling = Scaling(temperature=temperature)
    return Entry(identity=identity, begins=begins, scaling=scaling, rows=20, groups=20, **figures)


def test_a_file_is_what_was_written(tmp_path: Path) -> None:
    decide = Identity(task="decide", labels=((1,), (2,)), decision_prompt="d", question="q", orders=((1, 0),))
    written = Calibrations(MODEL, (entry(), entry(decide, 0.1 + 0.2)))
    written.write(tmp_path / "c.json", "mis-server 1")
    read = Calibrations.read(tmp_path / "c.json")
    assert (read.model, read.entries) == (MODEL, written.entries)
    assert [each.digest for each in read.entries] == [each.digest for each in written.entries]
    assert '"made_with": "mis-server 1"' in (tmp_path / "c.json").read_text()


def test_an_entry_is_found_by_everything_that_was_asked() -> None:
    known = Calibrations(MODEL, (entry(),))
    assert known.find(SCORE) is known.entries[0]
    assert known.find(None) is None
    for change in (
        {"task": "rerank"}, {"labels": ((2, 3), (1,))}, {"labels": ((1,), (2,))}, {"item_first": True},
        {"add_special_tokens": False}, {"delimiter": 5},
        {"template": "t"}, {"decision_prompt": "d"}, {"question": "q"}, {"orders": ((1, 0),)},
    ):  # fmt: skip
        assert known.find(msgspec.structs.replace(SCORE, **change)) is None


def test_the_entry_with_the_longest_common_query_start_is_found() -> None:
    plain, short, long = entry(), entry(begins=(1, 2, 3)), entry(begins=(1, 2, 3, 4, 5))
    known = Calibrations(MODEL, (plain, long, short))
    for query, wanted in (([9, 9], plain), ([1, 2, 3], short), ([1, 2, 3, 4, 9, 9], short), ([1, 2, 3, 4, 5], long)):
        assert known.find(SCORE, np.array(query, np.int32)) is wanted
    assert Calibrations(MODEL, (short,)).find(SCORE, np.array([1, 2], np.int32)) is None
    assert Calibrations(MODEL, (short,)).find(SCORE) is None


def test_a_common_beginning_is_not_chance() -> None:
    queries = [np.array([*range(10), *rest], np.int32) for rest in ([1, 2], [1, 3], [])]
    assert common_beginning(queries) == tuple(range(10))
    assert common_beginning(queries[:2]) == (*range(10), 1)
    assert common_beginning([each[3:] for each in queries]) == ()
    assert common_beginning([]) == ()
    assert common_beginning([np.array([5], np.int32)]) == (5,)  # all rows have it


def written(**changes: Any) -> bytes:
    model = msgspec.to_builtins(MODEL)
    given = {"format": "mis-calibration", "version": 1, "model": model, "entries": msgspec.to_builtins((entry(),))}
    return msgspec.json.encode(given | changes)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "not a calibration of version 1"),
        (b"[" * 100_000, "not a calibration of version 1"),
        (b"\xff\xfe", "not a calibration of version 1"),
        (written(format="other"), "not a calibration of version 1"),
        (written(version=2), "version"),
        (written(more=1), "unknown field `more`"),
        (written(entries=[]).replace(b'"w"', b"null"), "weights"),
        (written().replace(b'"temperature":2.0', b'"temperature":NaN'), "not a calibration"),
        (written().replace(b'"temperature":2.0', b'"temperature":1e999'), "not a calibration"),
        (written().replace(b'"temperature":2.0', b'"temperature":0'), "entries.*scaling.temperature"),
        (written().replace(b'"temperature":2.0', b'"temperature":-1'), "entries.*scaling.temperature"),
        (written().replace(b'"labels":[[1],[2,3]]', b'"labels":[[1]]'), "from 2 to 1024 labels"),
        (written(entries=msgspec.to_builtins((entry(), entry(temperature=3.0)))), "two entries for the same question"),
        (
            written(entries=msgspec.to_builtins([entry(begins=(number,)) for number in range(1001)])),
            "more than 1,000 entries that differ only in how queries begin",
        ),
    ],
)
def test_a_strangers_file_is_refused_in_a_sentence(tmp_path: Path, data: bytes, why: str) -> None:
    path = tmp_path / "c.json"
    path.write_bytes(data)
    with pytest.raises(ConfigError, match=why) as refused:
        Calibrations.read(path)
    assert refused.value.option == "calibration"
    assert len(refused.value.message) < 1000


def test_a_file_that_is_not_there_or_too_large_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        Calibrations.read(tmp_path / "c.json")
    with (tmp_path / "c.json").open("wb") as file:
        file.truncate(17 * 1024 * 1024)
    with pytest.raises(ConfigError, match="larger than 16,777,216 bytes"):
        Calibrations.read(tmp_path / "c.json")
