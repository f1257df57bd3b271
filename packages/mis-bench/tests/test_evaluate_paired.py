"""Two targets on the same rows, and the report's page."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fake_server import FakeServer
from mis_bench.cli import main
from page_parts import Page

LABELS = ["no", "yes"]


@pytest.fixture
def other() -> Any:
    found = FakeServer()
    yield found
    found.http.shutdown()
    found.http.server_close()


def told(item: str, labels: list[str], *, swapped: bool = False) -> list[float]:
    """The probability of yes is in the item's last word; swapped, that of no is."""
    yes = float(item.rpartition(" ")[2])
    return [1 - yes if (label == "yes") == swapped else yes for label in labels]


def scoring(is_swapped: Callable[[str], bool]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def score(body: dict[str, Any]) -> dict[str, Any]:
        rows = [told(item, body["labels"], swapped=is_swapped(item)) for item in body["items"]]
        return {"scores": rows, "token_logprobs": [[-1.0] * len(row) for row in rows]}

    return score


def score_rows(count: int = 200) -> list[dict[str, Any]]:
    shares = [(index % 97) / 97 for index in range(count)]
    return [
        {"id": f"r{index}", "query": "q", "item": f"<b>{index}</b> {0.01 + 0.98 * share:.4f}", "labels": LABELS}
        | {"label": int(share > 0.42)}
        for index, share in enumerate(shares)
    ]


def evaluated(tmp_path: Path, rows: list[Any], *arguments: str) -> tuple[int, Any, str]:
    data, found = tmp_path / "rows.jsonl", tmp_path / "found.json"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = CliRunner().invoke(main, ["evaluate", *arguments, "--data", str(data), "--json", str(found)])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.output
    return done.exit_code, json.loads(found.read_text()), " ".join(done.output.split())


def test_equal_targets_differ_by_exactly_nothing(fake: FakeServer, other: FakeServer, tmp_path: Path) -> None:
    fake.routes["/v1/score"] = other.routes["/v1/score"] = scoring(lambda item: False)
    status, found, said = evaluated(tmp_path, score_rows(), f"a=mis={fake.url}", f"b=mis={other.url}")
    assert status == 0
    (pair,) = found["paired"]
    assert pair["targets"] == ["a", "b"]
    assert pair["figures"].keys() == found["targets"][0]["figures"].keys()
    assert {tuple(each.values()) for each in pair["figures"].values()} == {(0.0, 0.0, 0.0)}
    assert pair["rank_correlation"] == pytest.approx(1, abs=1e-12)
    assert (pair["flips"], pair["worst"]) == ([], [])
    assert "b less a, 200 rows" in said


def test_swapped_rows_are_listed(fake: FakeServer, other: FakeServer, tmp_path: Path) -> None:
    rows = score_rows()
    swapped = {"r7", "r50", "r90", "r110", "r151", "r199"}  # 3 %
    items = {row["item"] for row in rows if row["id"] in swapped}
    fake.routes["/v1/score"], other.routes["/v1/score"] = scoring(lambda item: False), scoring(items.__contains__)
    _, found, said = evaluated(tmp_path, rows, f"a=mis={fake.url}", f"b=mis={other.url}")
    (pair,) = found["paired"]
    assert {each["row"] for each in pair["flips"]} == swapped == {each["row"] for each in pair["worst"]}
    changes = [abs(each["change"]) for each in pair["worst"]]
    assert changes == sorted(changes, reverse=True)
    by_row = {row["id"]: row for row in rows}
    for each in pair["flips"]:
        row = by_row[each["row"]]
        assert each["text"] == row["item"]
        assert each["truth"] == LABELS[row["label"]]
        assert set(each["decisions"]) == set(LABELS)
        assert sum(each["probabilities"]) == pytest.approx(1)
    differences = pair["figures"]["accuracy"]
    both = [each["figures"]["accuracy"]["value"] for each in found["targets"]]
    assert differences["value"] == pytest.approx(both[1] - both[0])
    assert differences["low"] < differences["value"] < differences["high"]
    assert 0.5 < pair["rank_correlation"] < 0.99
    assert "6 decisions flip" in said


def test_rows_that_one_could_not_answer_are_left_out_of_both(
    fake: FakeServer, other: FakeServer, tmp_path: Path
) -> None:
    def partly(body: dict[str, Any]) -> dict[str, Any]:
        reply = scoring(lambda item: False)(body)
        reply["scores"][0] = reply["token_logprobs"][0] = None
        return reply | {"errors": [{"index": 0, "code": "x", "message": "too long"}]}

    fake.routes["/v1/score"], other.routes["/v1/score"] = scoring(lambda item: False), partly
    rows = score_rows()
    rows[0]["labels"], rows[0]["label"] = (
        LABELS[::-1],
        1 - rows[0]["label"],
    )  # the order of the labels is the first row's
    status, found, _ = evaluated(tmp_path, rows, f"a=mis={fake.url}", f"b=mis={other.url}")
    assert status == 1
    assert [each["failed"] for each in found["targets"]] == [0, 2]  # one in each request
    (pair,) = found["paired"]
    assert pair["rows"] == 198
    assert {each["value"] for each in pair["figures"].values()} == {0.0}
    assert pair["rank_correlation"] == pytest.approx(1, abs=1e-12)


def test_rankings_are_compared_by_their_best_document(fake: FakeServer, other: FakeServer, tmp_path: Path) -> None:
    def ranked(body: dict[str, Any], *, is_backwards: bool) -> dict[str, Any]:
        scores = [0.9, 0.5, 0.1]
        order = scores[::-1] if is_backwards and body["query"] == "q3" else scores
        return {"results": [{"index": index, "relevance_score": score} for index, score in enumerate(order)]}

    fake.routes["/v2/rerank"] = lambda body: ranked(body, is_backwards=False)
    other.routes["/v2/rerank"] = lambda body: ranked(body, is_backwards=True)
    rows = [{"query": f"q{index}", "documents": ["a", "b", "c"], "relevance": [1, 0, 0]} for index in range(12)]
    _, found, _ = evaluated(tmp_path, rows, f"a=cohere={fake.url}", f"b=cohere={other.url}")
    (pair,) = found["paired"]
    assert pair["figures"]["mrr"]["value"] == pytest.approx(-2 / 3 / 12)
    (flip,) = pair["flips"]
    assert (flip["row"], flip["truth"], flip["decisions"]) == ("3", "0", ["0", "2"])
    assert flip["change"] == pytest.approx(0.5)
    assert [each["row"] for each in pair["worst"]] == ["3"]


def test_the_page_is_complete_and_shows_strangers_texts_as_texts(
    fake: FakeServer, other: FakeServer, tmp_path: Path
) -> None:
    rows = [row | {"slice": "<i>films</i>"} for row in score_rows()]
    rows[5]["item"] = "<script>alert(1)</script> 0.9"
    swapped = {rows[5]["item"], rows[9]["item"]}
    fake.routes["/v1/score"], other.routes["/v1/score"] = scoring(lambda item: False), scoring(swapped.__contains__)
    page = tmp_path / "page.html"
    arguments = [f"a=mis={fake.url}", f"b=mis={other.url}", "--report", str(page), "--gate", "ece<=0"]
    status, _, _ = evaluated(tmp_path, rows, *arguments)
    assert status == 1
    text = page.read_text()
    found = Page(text)
    assert [each for each in found.loaded if each != "data:,"] == []
    assert len(found.plots) == 2
    assert "<script>alert" not in text
    assert "<i>films" not in text
    assert "<b>9</b>" not in text
    assert "alert(1)" in found.text
    for words in (
        "Calibration",
        "Risk and coverage",
        "Slices",
        "2 decisions flip",
        "Largest changes",
        "Gate missed: a: ece",
    ):
        assert words in found.text
