"""The window of `mis-server score`: which rows are asked for together, how many are held, in what order they end."""

import asyncio
import contextlib
import json
import marshal
import math
import random
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import stopping
from mis_core.errors import RequestError
from mis_core.process.quarantine import RequestRefused
from mis_server.cli import main
from mis_server.offline import window
from mis_server.offline.query import OfflineQuery
from mis_server.offline.rows import InputRow
from mis_server.offline.scorer import Scorer
from mis_server.offline.window import in_order
from stopping import stopped

QUERIES = ("a", "b", "[1]", [1], [True], [1.0], [2, 3], None, {"not": "a query"})


class WatchedWindow:
    """Rows that pass through a window, and what is seen of them: whatever it does is checked as it happens.

    Attributes:
        batches: The rows of each request by their numbers, in order of the requests.
        written: Numbers of the rows that came out.
        most_held: The most rows that were read and not written.
        most_unanswered: The most of them that had their items.
        most_under_way: The most requests at a time.
    """

    def __init__(self, rows: list[InputRow], asked: OfflineQuery, pauses: random.Random) -> None:
        self.batches: list[list[int]] = []
        self.written: list[int] = []
        self.most_held = self.most_unanswered = self.most_under_way = 0
        self._rows, self._asked, self._pauses = rows, asked, pauses
        self._numbers = {id(row): number for number, row in enumerate(rows)}
        self._read = self._under_way = 0

    def read(self) -> Iterator[InputRow]:
        for row in self._rows:
            self._read += 1
            held = self._rows[len(self.written) : self._read]
            self.most_held = max(self.most_held, len(held))
            self.most_unanswered = max(self.most_unanswered, sum(row.items != [] for row in held))
            yield row

    async def score(self, batch: list[InputRow]) -> None:
        numbers = [self._numbers[id(row)] for row in batch]
        done = {number for asked in self.batches for number in asked}
        assert numbers[0] == min(set(range(self._read)) - done), "the oldest row is not asked for first"
        assert numbers == sorted(numbers)
        assert len({repr(row.query) for row in batch}) == 1
        self.batches.append(numbers)
        self._under_way += 1
        self.most_under_way = max(self.most_under_way, self._under_way)
        for _ in range(self._pauses.randrange(20)):
            await asyncio.sleep(0)
        for row in batch:
            row.answer = [[1.0]] * len(row.items)
        self._under_way -= 1

    def run(self) -> None:
        async def run() -> None:
            async with contextlib.aclosing(in_order(self.read(), self.score, self._asked)) as runs:
                async for run in runs:
                    assert all(row.answer is not None for row in run)
                    self.written += [self._numbers[id(row)] for row in run]

        asyncio.run(run())


def asked(**options: Any) -> OfflineQuery:
    return OfflineQuery(labels=("yes",), **options)


@contextlib.contextmanager
def window_of(**limits: int) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in limits.items():
            patch.setattr(window, name, value)
        yield


@given(
    rows=st.lists(st.tuples(st.sampled_from(QUERIES), st.integers(0, 3)), max_size=80),
    unanswered=st.integers(1, 30),
    held=st.integers(1, 60),
    full_batches=st.integers(1, 4),
    requests=st.integers(1, 9),
    batch_size=st.integers(1, 9),
    run_rows=st.integers(1, 9),
    pauses=st.randoms(use_true_random=False),
)
def test_rows_are_asked_once_oldest_first_and_written_in_order(
    rows: list[tuple[Any, int]],
    unanswered: int,
    held: int,
    full_batches: int,
    requests: int,
    batch_size: int,
    run_rows: int,
    pauses: random.Random,
) -> None:
    inputs = [InputRow(query, ["item"] * items) for query, items in rows]
    sizes = [len(row.items) for row in inputs]
    watched = WatchedWindow(inputs, asked(batch_size=batch_size), pauses)
    limits = {"UNANSWERED_ROWS": unanswered, "HELD_ROWS": held, "RUN_ROWS": run_rows}
    with window_of(**limits, REQUESTS=requests, FULL_BATCHES=full_batches):
        watched.run()
    assert watched.written == list(range(len(rows)))
    assert sorted(number for batch in watched.batches for number in batch) == watched.written
    assert all(len(batch) == 1 or sum(sizes[number] for number in batch) <= batch_size for batch in watched.batches)
    assert watched.most_held <= held
    assert watched.most_unanswered <= unanswered
    assert watched.most_under_way <= max(requests, full_batches)


def batches_of(rows: list[InputRow], **options: int) -> list[list[int]]:
    watched = WatchedWindow(rows, asked(**options), random.Random(0))
    watched.run()
    return watched.batches


def test_distant_rows_of_a_query_are_asked_for_together() -> None:
    rows = [InputRow(f"query {number % 40}", ["item"]) for number in range(400)]
    random.Random(0).shuffle(rows)
    assert [len(batch) for batch in batches_of(rows)] == [10] * 40


def test_queries_that_python_takes_for_equal_are_not() -> None:
    rows = [InputRow(query, ["item"]) for query in ([1], [True], [1.0], "[1]", [1], "\x01")]
    assert batches_of(rows) == [[0, 4], [1], [2], [3], [5]]


def test_batches_have_about_the_requested_tokens_and_items() -> None:
    def sizes(*items: list[Any], **limits: int) -> list[int]:
        return [len(batch) for batch in batches_of([InputRow("q", each) for each in items], **limits)]

    assert sizes(*[[[1] * 10]] * 10, batch_tokens=35) == [3, 3, 3, 1]
    assert sizes(*[["four" * 10]] * 10, batch_tokens=35) == [3, 3, 3, 1]
    assert sizes(*[[[1] * 10] * 4] * 3, batch_tokens=35) == [1, 1, 1]
    assert sizes(*[[[1]] * 4] * 5, batch_size=8) == [2, 2, 1]


def test_many_small_batches_have_the_items_of_sixteen_full_ones() -> None:
    def most_under_way(**options: int) -> int:
        watched = WatchedWindow([InputRow(f"{number}", ["item"]) for number in range(2000)], asked(**options), Slow())
        watched.run()
        return watched.most_under_way

    assert most_under_way() == window.REQUESTS
    assert most_under_way(batch_size=4) == 4 * window.FULL_BATCHES
    assert most_under_way(batch_size=1) == most_under_way(batch_tokens=1) == window.FULL_BATCHES
    assert most_under_way(batch_tokens=4) == 22  # 64 tokens; each has two of an item and one of a query


def test_few_requests_start_while_the_window_is_filled() -> None:
    rows = [InputRow(f"{number % 40}", ["item"]) for number in range(window.UNANSWERED_ROWS)]
    starts: list[int] = []

    class Watched(WatchedWindow):
        async def score(self, batch: list[InputRow]) -> None:
            starts.append(self._read)
            await super().score(batch)

    watched = Watched(rows, asked(), Slow())
    watched.run()
    assert starts[0] < 1024
    early = [start for start in starts if start < len(rows)]
    assert len(early) <= len(rows) // 512
    assert sum(map(len, watched.batches[len(early) :])) > 0.6 * len(rows)


class Slow(random.Random):
    """Makes every answer late."""

    def randrange(self, *_: Any) -> int:
        return 50


@pytest.mark.parametrize("what", ["texts", "ids", "answers"])
def test_bytes_of_texts_ids_and_answers_are_bounded(what: str) -> None:
    labels = 30_000 if what == "answers" else 1
    rows = [
        InputRow(f"{number}", ["x" * 1_000_000 if what == "texts" else "x"], id=[["y" * 1_000_000]] * (what == "ids"))
        for number in range(50)
    ]
    first_may_end = asyncio.Event()
    read = written = most_held = 0

    async def score(batch: list[InputRow]) -> None:
        nonlocal most_held
        most_held = max(most_held, read - written)
        if batch[0] is rows[0]:
            await first_may_end.wait()
        elif batch[0] is rows[3]:  # the last that there is room for, if answers wait in it
            asyncio.get_running_loop().call_later(0.05, first_may_end.set)
        batch[0].answer = [[0.0]]

    def some() -> Iterator[InputRow]:
        nonlocal read
        for row in rows:
            read += 1
            yield row

    async def run() -> None:
        nonlocal written
        query = OfflineQuery(label_token_ids=tuple(range(labels)))
        async with contextlib.aclosing(in_order(some(), score, query)) as runs:
            async for run in runs:
                written += len(run)

    with window_of(HELD_BYTES=3_800_000):
        asyncio.run(run())
    assert written == 50
    # A text goes when it is answered, so later ones are read though the first row is not written.
    assert most_held == (50 if what == "texts" else 4)


def test_texts_without_answers_are_bounded() -> None:
    rows = [InputRow(f"{number}", ["x" * 1_000_000]) for number in range(50)]
    watched = WatchedWindow(rows, asked(), Slow())
    with window_of(HELD_BYTES=3_800_000):
        watched.run()
    assert watched.most_unanswered == 4


@pytest.mark.parametrize("fails", [False, True])
def test_work_under_way_ends_with_a_failure_or_without_a_reader(fails: bool) -> None:
    ended = []

    async def score(batch: list[InputRow]) -> None:
        if batch[0].query == "0":
            batch[0].answer = [[0.0]]
            return
        if batch[0].query == "1" and fails:
            raise RuntimeError("failed")
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            ended.append(batch[0].query)

    async def run() -> None:
        rows = [InputRow(f"{number}", ["item"]) for number in range(10)]
        async with contextlib.aclosing(in_order(rows, score, asked())) as runs:
            async for run in runs:
                assert [row.answer for row in run] == [[[0.0]]]
                if not fails:
                    return

    with pytest.raises(RuntimeError, match="failed") if fails else contextlib.nullcontext():
        asyncio.run(run())
    assert len(ended) == 8 if fails else 9


class PretendedModel:
    """Refuses requests with certain items. `asked` are the numbers of their items."""

    def __init__(self, refuse: Callable[[str], Exception | None]) -> None:
        self.asked: list[int] = []
        self._refuse = refuse

    async def answer(self, _: Any, fields: dict[str, Any]) -> Any:
        self.asked.append(len(fields["documents"]))
        for index, item in enumerate(fields["documents"]):
            if (error := self._refuse(item)) is not None:
                error.args = (f"{item} is refused at {index}",)
                raise error
        results = [type("Document", (), {"index": i, "relevance_score": 0.5}) for i in range(len(fields["documents"]))]
        return type("Answered", (), {"result": type("Ranking", (), {"results": results})})


@pytest.mark.parametrize(("error", "most"), [("request", 2 * 9 + 1), ("refused", 513)])
def test_a_faulty_row_is_found_in_few_requests_others_are_scored(error: str, most: int) -> None:
    def refuse(item: str) -> Exception | None:
        if item != "300":
            return None
        return RequestError("empty_item", "") if error == "request" else RequestRefused("")

    rows = [InputRow("q", [str(number)]) for number in range(512)]
    model: Any = PretendedModel(refuse)
    asyncio.run(Scorer(OfflineQuery(rerank=True), model, "float32").score(rows))
    assert [row.answer for row in rows] == [None if number == 300 else [[0.5]] for number in range(512)]
    wrong = rows[300].error
    assert wrong is not None
    assert (wrong["code"], wrong["message"]) == (
        "empty_item" if error == "request" else "internal_error",
        "300 is refused at 0",
    )
    assert len(model.asked) == most


def test_keys_of_queries_do_not_depend_on_where_they_were_read() -> None:
    texts = ["1000", "[1000, 1000, [5]]", '{"a": [1.5, null]}', "[" * 700 + "]" * 700]
    for text in texts:
        once, again = json.loads(text), marshal.loads(marshal.dumps(json.loads(text)))
        assert window._key(once) == window._key(again)


LABELS = ("--labels", "yes", "no")
ENGINE = ("--dtype", "float32", "--skip-warmup", "--chunked-prefill-size", "256", "--max-total-tokens", "8192")
SMALL_WINDOW = {"UNANSWERED_ROWS": 60, "HELD_ROWS": 90, "REQUESTS": 8}


def shuffled_lines(rows: int, queries: int) -> list[str]:
    """Rows of all kinds with those of a query far from each other, some of them wrong."""
    lines = [
        json.dumps({"id": row, "query": f"Is {row % queries} an animal? ", "item": f"item {row // queries}"})
        for row in range(rows)
    ]
    for row in range(0, rows, 37):
        query = f"Is {row % queries} an animal? "
        wrong: list[Any] = [{"item": "word " * 5000}, {"items": []}, {"items": ["one", 2]}, {"items": ["one", "two"]}]
        lines[row] = json.dumps({"id": row, "query": query, **wrong[row % len(wrong)]})
    lines[1], lines[2], lines[5] = "not json", '{"item": "no query"}', '{"query": [1, 2], "item": [3, 4], "id": 5}'
    random.Random(0).shuffle(lines)
    return lines


@pytest.mark.parametrize(
    ("kind", "kills"),
    [
        ("jsonl", [0.3]),
        pytest.param("jsonl", [0.1, 0.3, 0.6], marks=pytest.mark.full),
        pytest.param("parquet", [], marks=pytest.mark.full),
    ],
)
def test_a_killed_run_writes_the_bytes_of_one_without_a_window(
    checkpoint: Path, tmp_path: Path, kind: str, kills: list[float]
) -> None:
    rows = 600 if len(kills) != 1 else 300
    items, output = tmp_path / "items.jsonl", tmp_path / f"out.{kind}"
    items.write_text("\n".join(shuffled_lines(rows, 30)) + "\n")

    def arguments(output: Path) -> list[str]:
        return ["score", str(checkpoint), "--items", str(items), "--output", str(output), *LABELS, *ENGINE]

    def contents(output: Path) -> list[bytes]:
        if kind == "jsonl":
            return [output.read_bytes()]
        import pyarrow.parquet as pq

        return [str(pq.read_table(output).to_pylist()).encode()]

    def score_here(output: Path) -> list[bytes]:
        done = CliRunner().invoke(main, arguments(output), prog_name="mis-server")
        assert done.exit_code == 2, done.stderr
        return contents(output)

    with window_of(UNANSWERED_ROWS=1):
        want = score_here(tmp_path / f"alone.{kind}")
    assert score_here(tmp_path / f"whole.{kind}") == want  # the file is smaller than the window
    for share in kills:
        kill_at(output, arguments(output), math.ceil(share * rows))
    command = stopping.command(arguments(output), **SMALL_WINDOW)
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert done.returncode == 2, done.stderr
    assert contents(output) == want


def kill_at(output: Path, arguments: list[str], lines: int) -> None:
    """Run a command, and kill it when it has written so many lines, in the middle of another."""
    written = output.read_bytes().count(b"\n") if output.exists() else 0
    with stopped(stopping.command(arguments, rows=lines - written, **SMALL_WINDOW), stderr=subprocess.DEVNULL):
        pass
    with output.open("ab") as file:
        file.write(b'{"scores": [0.')
