"""`mis-server score --ray`: the bytes of `mis-server score`, whatever is killed meanwhile."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from documented_commands import ROOT, commands
from ray_node import RayNode

LABELS = ("--labels", "yes", "no")
ENGINE = ("--dtype", "float32", "--skip-warmup", "--chunked-prefill-size", "256", "--max-total-tokens", "8192")


def command(checkpoint: Path, *arguments: object) -> list[str]:
    return [sys.executable, "-m", "mis_server", "score", str(checkpoint), *map(str, arguments)]


def run(checkpoint: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(checkpoint, *arguments), capture_output=True, text=True, timeout=1800)


def lines_of(rows: int, queries: int) -> list[str]:
    """Rows of all kinds, some of them wrong, with those of a query far from each other."""
    lines = [
        json.dumps({"id": i, "query": f"Is {i % queries} of {queries} an animal? ", "item": f"item {i // queries}"})
        for i in range(rows)
    ]
    lines[0], lines[1], lines[2] = "not json", '{"item": "without a query"}', '{"query": [1, 2, 3], "item": [4, 5]}'
    lines[3] = json.dumps({"query": "Is 3 of them? ", "items": ["one", "two"], "id": "several"})
    lines[4], lines[5] = json.dumps({"query": "q", "item": "word " * 5000}), '{"query": "q", "items": "none"}'
    random.Random(0).shuffle(lines)
    return lines


def written(output: Path, suffix: str = "jsonl") -> dict[Path, int]:
    """Parts that are there, with when they were written."""
    return {path: path.stat().st_mtime_ns for path in output.glob(f"*/*.{suffix}")}


def whole(output: Path, name: str) -> bytes:
    return b"".join(path.read_bytes() for path in sorted((output / name).iterdir()))


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("rows", "queries", "actor_kills", "driver_kills"),
    [(600, 60, 1, 1), pytest.param(20_000, 2000, 3, 2, marks=pytest.mark.full)],
)
def test_the_output_is_that_of_one_process_though_actors_and_drivers_are_killed(
    ray_cluster: RayNode, checkpoint: Path, tmp_path: Path, rows: int, queries: int, actor_kills: int, driver_kills: int
) -> None:
    folder, output, log = tmp_path / "in", tmp_path / "out", tmp_path / "log.txt"
    folder.mkdir()
    lines = lines_of(rows, queries)
    for name, some in (("a.jsonl", lines[: rows // 2]), ("b.jsonl", lines[rows // 2 :])):
        (folder / name).write_text("\n".join(some) + "\n")
    size = sum(path.stat().st_size for path in folder.iterdir())
    num_parts = 24
    ray = ("--ray", ray_cluster.address, "--input", folder, "--output", output, "--actors", 2)
    ray = (*ray, "--part-bytes", size // num_parts + 1, *LABELS, *ENGINE)
    # Kills are spread over the parts; the last one is of an actor, in a run that then has to finish.
    kills = ["driver"] * driver_kills + ["actor"] * actor_kills
    random.Random(rows).shuffle(kills)
    driver = None
    before: dict[Path, int] = {}
    for number, kill in enumerate([*kills, "nothing"]):
        if driver is None:
            with log.open("ab") as stderr:
                driver = subprocess.Popen(command(checkpoint, *ray), stderr=stderr, stdout=stderr)
        enough = (number + 1) * num_parts // (len(kills) + 2)
        while kill != "nothing" and len(written(output)) < enough:
            assert driver.poll() is None, log.read_text()[-3000:]
            time.sleep(0.02)
        if kill == "driver":
            driver.kill()
            driver.wait()
            driver, before = None, written(output)
            assert before
        elif kill == "actor":
            os.kill(random.Random(number).choice(ray_cluster.workers("_PartScorer")), signal.SIGKILL)
    assert driver is not None
    assert driver.wait(1800) == 2, log.read_text()[-3000:]  # some rows have an error
    assert (output / "_SUCCESS").exists()
    assert not (output / "_unfinished").exists()
    after = written(output)
    assert before.items() <= after.items(), "a part that was there was written again"
    items, alone = tmp_path / "items.jsonl", tmp_path / "alone.jsonl"
    items.write_text("\n".join(lines) + "\n")
    done = run(checkpoint, "--items", items, "--output", alone, *LABELS, *ENGINE)
    assert done.returncode == 2, done.stderr
    got = whole(output, "a.jsonl") + whole(output, "b.jsonl")
    assert got == alone.read_bytes()
    answers = [json.loads(line) for line in got.splitlines()]
    assert len(answers) == rows
    asked = [json.loads(line).get("id") if line.startswith("{") else None for line in lines]
    assert [answer.get("id") for answer in answers] == asked
    codes = sorted(answer["error"]["code"] for answer in answers if "error" in answer)
    assert codes == [
        "context_length_exceeded",
        "invalid_items_type",
        "invalid_json",
        "missing_query",
    ]


GUIDE = ROOT / "docs" / "guides" / "many-rows.md"


@pytest.mark.full
def test_what_the_guide_shows_gives_the_scores_of_one_process(
    ray_cluster: RayNode, checkpoint: Path, tmp_path: Path
) -> None:
    rows: list[dict[str, Any]] = [
        {"id": i, "query": f"Which of {i % 7}? ", "items": [f"text {i}", "another"]} for i in range(60)
    ]
    rows[9]["query"] = None
    (tmp_path / "rows").mkdir()
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows" / "some.parquet", row_group_size=25)
    (tmp_path / "lines.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    environment = os.environ | {"RAY_ADDRESS": ray_cluster.address, "RAY_DATA_DISABLE_PROGRESS_BARS": "1"}
    environment |= {"MIS_DTYPE": "float32", "MIS_SKIP_WARMUP": "1", "MIS_CHUNKED_PREFILL_SIZE": "256"}

    def start(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments], capture_output=True, text=True, timeout=1800, cwd=tmp_path, env=environment
        )

    page = GUIDE.read_text()
    shown = next(each for each in commands(page) if "--ray" in each)
    shown = [str(checkpoint) if each == "path/to/Qwen3-0.6B" else each for each in shown]
    done = start("-m", "mis_server", *shown[1:])
    assert done.returncode == 2, done.stderr
    assert "60 rows in" in done.stdout
    assert "1 of these rows have an error" in done.stdout
    (output,) = (tmp_path / "scores").glob("*/*.parquet")
    got = pq.read_table(output).to_pylist()

    (script,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (tmp_path / "script.py").write_text(
        script.replace("path/to/Qwen3-0.6B", str(checkpoint)).replace("/data", str(tmp_path))
    )
    done = start("script.py")
    assert done.returncode == 0, done.stderr
    from_script = sorted(pq.read_table(tmp_path / "scored").to_pylist(), key=lambda row: row["id"])

    labels = shown[shown.index("--labels") :]
    done = start("-m", "mis_server", "score", str(checkpoint), "--items", "lines.jsonl", "--output", "alone", *labels)
    assert done.returncode == 2, done.stderr
    want = [json.loads(line) for line in (tmp_path / "alone").read_text().splitlines()]
    assert [row["id"] for row in got] == [row["id"] for row in from_script] == list(range(60))
    for rows_of_one in (got, from_script):
        assert [row["scores"] for row in rows_of_one] == [row.get("scores") for row in want]
        assert rows_of_one[9]["error"] == want[9]["error"]
    assert [row["query"] for row in from_script] == [row["query"] for row in rows]


@pytest.mark.full
def test_what_an_actor_refuses_is_one_line(ray_cluster: RayNode, checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"query": "q", "item": "a"}\n')
    ray = ("--ray", ray_cluster.address, "--input", tmp_path, "--output", tmp_path / "out", *ENGINE)
    done = run(checkpoint, *ray, "--labels", "")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("Error: --labels: ")
    assert "Traceback" not in done.stderr
