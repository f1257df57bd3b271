"""`mis-server score --ray`: the bytes of `mis-server score`, whatever is killed meanwhile."""

import gzip
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
from mis_server.offline.text import zstd
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
def test_killed_actors_and_drivers_do_not_change_the_output(
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


def test_an_output_over_its_input_is_refused_gzip_and_zstd_read(
    ray_cluster: RayNode, checkpoint: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "out" / "in"
    folder.mkdir(parents=True)
    lines = b"\xef\xbb\xbf" + b"".join(b'{"id": %d, "item": "item %d"}\n' % (i, i) for i in range(20))
    for name, content in [
        ("a.jsonl", lines + b" \n\r\n"),
        ("b.jsonl.gz", gzip.compress(lines)),
        ("c.jsonl.zst", zstd.compress(lines)),
        ("d.jsonl", b"\n"),
    ]:
        (folder / name).write_bytes(content)
    arguments = ("--ray", ray_cluster.address, "--input", folder, "--query", "q ", *LABELS, *ENGINE)
    done = run(checkpoint, *arguments, "--output", tmp_path / "out", "--overwrite")
    assert done.returncode == 1
    assert "Error: --output: " in done.stderr
    assert "which is read" in done.stderr
    assert len(list(folder.iterdir())) == 4
    output = tmp_path / "scores"
    done = run(checkpoint, *arguments, "--output", output)
    assert done.returncode == 0, done.stderr
    want = whole(output, "a.jsonl")
    assert [json.loads(line)["id"] for line in want.splitlines()] == list(range(20))
    assert whole(output, "b.jsonl.gz") == whole(output, "c.jsonl.zst") == want
    assert [path.stat().st_size for path in (output / "d.jsonl").iterdir()] == [0]


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
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "rows.jsonl").write_text('{"query": "q", "item": "a"}\n')
    ray = ("--ray", ray_cluster.address, "--input", tmp_path / "in", "--output", tmp_path / "out", *ENGINE)
    done = run(checkpoint, *ray, "--labels", "")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("Error: --labels: ")
    assert "Traceback" not in done.stderr


def test_parquet_keeps_every_id_and_reports_what_is_not_text(
    ray_cluster: RayNode, checkpoint: Path, tmp_path: Path
) -> None:
    ids = pa.array([2**64 - 1 - i if i % 3 and i >= 20 else None for i in range(60)], pa.uint64())
    texts = [f"text {i}".encode() for i in range(60)]
    texts[7] = b"\xff\xfe"
    (tmp_path / "rows").mkdir()
    first = pa.table({"id": ids.slice(0, 40), "item": pa.array(texts[:40])})
    pq.write_table(first, tmp_path / "rows" / "a.parquet", row_group_size=20)
    dates = pa.table({"id": ids.slice(40), "item": pa.array(range(20), pa.date32())})
    pq.write_table(dates, tmp_path / "rows" / "b.parquet")
    ray = ("--ray", ray_cluster.address, "--input", tmp_path / "rows", "--output", tmp_path / "out")
    ray = (*ray, "--output-format", "parquet", "--part-bytes", 150, "--query", "q ", "--score-column", "p")
    done = run(checkpoint, *ray, *LABELS, *ENGINE)
    assert done.returncode == 2, done.stderr
    assert len(written(tmp_path / "out", "parquet")) > 3
    got = pq.read_table(tmp_path / "out")
    assert got.column_names == ["p", "error", "id"]
    assert got["id"].equals(pa.chunked_array([ids]))
    errors = got["error"].to_pylist()
    assert [index for index, error in enumerate(errors) if error] == [7, *range(40, 60)]
    assert errors[7]["message"].startswith("The column item has type binary and bytes that are not UTF-8; ")
    assert errors[50]["message"].startswith("The column item has type date32[day]; ")
    lines = tmp_path / "lines.jsonl"
    lines.write_text("".join(json.dumps(f"text {i}") + "\n" for i in range(40) if i != 7))
    done = run(checkpoint, "--items", lines, "--output", tmp_path / "alone", "--query", "q ", *LABELS, *ENGINE)
    assert done.returncode == 0, done.stderr
    want = [json.loads(line)["scores"] for line in (tmp_path / "alone").read_text().splitlines()]
    assert [scores[0] for scores in got["p"].to_pylist() if scores] == want
    done = run(checkpoint, *ray[:-1], "other", *LABELS, *ENGINE)
    assert done.returncode == 1
    assert "was made with other values of score_column" in done.stderr


PLANTED = ("tokenizers", "transformers", "msgspec", "regex", "safetensors", "huggingface_hub", "jinja2", "uvloop")
"""What we import and Ray Data does not."""

DATASET = """
import json, sys
import numpy as np
import ray
from mis_core.errors import ConfigError
from mis_server.ray import score_dataset

ray.data.DataContext.get_current().enable_progress_bars = False
ids = [[1, 2], [3, 4, 5], [6, 7]]
taken = {"scores": 1.5, "error": "mine"}
rows = [{**taken, "query": np.array([8, 9]), "item": np.array(each), "n": n} for n, each in enumerate(ids)]
rows.append({**taken, "query": np.array([8, 9]), "item": None, "n": 3})
rows.append({**taken, "query": np.array([8, 9]), "item": np.array([0.5]), "n": 4})
known = ray.data.from_items(rows, override_num_blocks=1)


def passed(batch):
    import mine  # the user's, in the directory of the script

    return mine.passed(batch)


unknown = known.map_batches(passed)
options = {"label_token_ids": [7, 8], "dtype": "float32", "skip_warmup": True, "chunked_prefill_size": 256}
refused = []
for dataset, names in (
    (known, {}),
    (known, {"score_column": "p"}),
    (known, {"score_column": "p", "error_column": "p"}),
    (known, {"score_column": "n", "error_column": "why"}),
    (unknown, {}),  # only an actor can tell
):
    try:
        score_dataset(dataset, sys.argv[1], **names, **options).materialize()
    except Exception as error:
        refused.append([type(error).__name__, str(error)])
scored = score_dataset(known, sys.argv[1], score_column="p", error_column="why", **options)
of_types = ray.data.from_items([{"n": 0, "query": [8, 9], "items": ids}]).union(
    ray.data.from_items([{"n": 1, "query": [8, 9], "items": [np.array(each) for each in ids]}]),
    ray.data.from_items([{"n": 2, "query": [8, 9], "items": np.array([[1, 2], [3, 4]])}]),
    ray.data.from_items([{"n": 3, "query": "q", "item": "a"}]),
)
lists = [
    sorted(each.take_all(), key=lambda row: row["n"])
    for each in (scored, score_dataset(of_types, sys.argv[1], rows_per_batch=1, **options))
]
with open(sys.argv[2], "w") as file:  # Ray repeats what its workers print on the standard output
    json.dump([refused, scored.columns(), *lists], file, default=np.ndarray.tolist)
"""


def test_a_dataset_keeps_its_columns_and_may_have_arrays(
    ray_cluster: RayNode, checkpoint: Path, tmp_path: Path
) -> None:
    """So does its pipeline: it finds the user's modules, and nothing of ours looks into the working directory."""
    scripts, elsewhere = tmp_path / "scripts", tmp_path / "elsewhere"
    scripts.mkdir()
    elsewhere.mkdir()
    (scripts / "script.py").write_text(DATASET)
    (scripts / "mine.py").write_text("def passed(batch):\n    return batch\n")
    for name in PLANTED:
        note = f"open({str(tmp_path / 'imported')!r}, 'a').write({name!r} + '\\n')\nraise ImportError({name!r})\n"
        (elsewhere / f"{name}.py").write_text(note)
    environment = os.environ | {"RAY_ADDRESS": ray_cluster.address}
    found = tmp_path / "found.json"
    arguments = [sys.executable, str(scripts / "script.py"), str(checkpoint), str(found)]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=600, cwd=elsewhere, env=environment)
    assert done.returncode == 0, done.stderr[-5000:]
    assert not (tmp_path / "imported").exists()
    refused, columns, rows, of_types = json.loads(found.read_text())
    assert [name for name, _ in refused[:4]] == ["ConfigError"] * 4
    for (_, message), (name, option) in zip(
        refused,
        (
            ("scores", "score_column"),
            ("error", "error_column"),
            ("p", "error_column"),
            ("n", "score_column"),
            ("scores", "score_column"),
        ),
        strict=True,
    ):
        assert f"There is a column '{name}' already; give {option} another name." in message
    assert columns == ["scores", "error", "query", "item", "n", "p", "why"]
    assert [(row["scores"], row["error"]) for row in rows] == [(1.5, "mine")] * 5
    assert [row["error"] for row in of_types] == [None] * 4
    plain, items, arrays, _ = (row["scores"] for row in of_types)
    assert [row["p"] and row["p"][0] for row in rows] == [*plain, None, None]
    assert items == plain
    assert arrays[0] == plain[0]
    assert len(arrays) == 2
    assert rows[3]["why"]["code"] == "missing_items"
    assert rows[4]["why"]["code"] == "invalid_items_type"
    assert rows[4]["why"]["message"].startswith("The column item has type extension<ray.data.")


def test_decisions_are_those_of_one_process(ray_cluster: RayNode, checkpoint: Path, tmp_path: Path) -> None:
    noul = {"type": "noul", "instructions": "Is it about animals?"}
    choice = {"type": "choice", "criteria": {"cat": "a pet", "dog": None}}
    (tmp_path / "questions.json").write_text(json.dumps({"animals": noul, "which": choice}))
    lines: list[Any] = [{"id": row, "state": {"text": f"State {row % 7}."}} for row in range(40)]
    lines[3]["questions"], lines[5]["state"], lines[9]["questions"] = {"own": noul}, 5, {"bad": {"type": "noul"}}
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "some.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    asked = ("--questions", tmp_path / "questions.json", "--abstain-below", 0.9, *ENGINE)

    def decide(*arguments: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "mis_server", "decide", str(checkpoint), *map(str, (*arguments, *asked))]
        return subprocess.run(command, capture_output=True, text=True, timeout=1800)

    ray = ("--ray", ray_cluster.address, "--part-bytes", 700, "--input", tmp_path / "in")
    done = decide(*ray, "--output", tmp_path / "out")
    assert done.returncode == 2, done.stderr
    assert f"Decisions written to {tmp_path / 'out'}: 40 rows in " in done.stdout
    assert len(written(tmp_path / "out")) > 1
    done = decide("--input", tmp_path / "in" / "some.jsonl", "--output", tmp_path / "alone.jsonl")
    assert done.returncode == 2, done.stderr
    assert whole(tmp_path / "out", "some.jsonl") == (tmp_path / "alone.jsonl").read_bytes()
    refused = decide(*ray, "--output", tmp_path / "questions.json")
    assert refused.returncode == 1
    assert "is the questions, which is read" in refused.stderr


@pytest.mark.full
def test_calibrated_decisions_are_those_of_one_process(ray_cluster: RayNode, checkpoint: Path, tmp_path: Path) -> None:
    questions = {"animals": {"type": "noul", "instructions": "Is it about animals?"}}
    lines: list[Any] = [{"id": row, "state": f"State {row}."} for row in range(40)]
    rows = [line | {"questions": questions, "answers": {"animals": line["id"] % 3 == 0}} for line in lines]
    (tmp_path / "in").mkdir()
    for name, some in (("in/some.jsonl", lines), ("data.jsonl", rows)):
        (tmp_path / name).write_text("".join(json.dumps(each) + "\n" for each in some))
    (tmp_path / "questions.json").write_text(json.dumps(questions))

    def start(name: str, *arguments: object) -> None:
        command = [sys.executable, "-m", "mis_server", name, str(checkpoint), *map(str, arguments), *ENGINE]
        done = subprocess.run(command, capture_output=True, text=True, timeout=1800)
        assert done.returncode == 0, done.stderr

    calibration = tmp_path / "c.json"
    start("calibrate", tmp_path / "data.jsonl", "--output", calibration)
    asked = ("--questions", tmp_path / "questions.json", "--calibration", calibration)
    ray = ("--ray", ray_cluster.address, "--part-bytes", 700)
    start("decide", *ray, "--input", tmp_path / "in", "--output", tmp_path / "out", *asked)
    start("decide", "--input", tmp_path / "in" / "some.jsonl", "--output", tmp_path / "alone.jsonl", *asked)
    alone = (tmp_path / "alone.jsonl").read_bytes()
    assert whole(tmp_path / "out", "some.jsonl") == alone
    assert len({json.loads(line)["x_calibration"]["animals"] for line in alone.splitlines()} - {None}) == 1
