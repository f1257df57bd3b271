"""`mis-bench report`: what is on the page for which sources, its figures against the records, what it loads."""

import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from mis_bench.cli import main
from mis_bench.records import Call
from mis_bench.report.plots import LINE_PX, Axis, Series, bars, lines
from page_parts import Page
from report_artifacts import validation
from report_sources import EVERY_PRESET, case, compare, estimate, run, sweep, write_everything, write_results


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of every preset, documents, two estimates, and a file that is none of ours."""
    made = tmp_path_factory.mktemp("results")
    write_everything(made)
    return made


def report(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(main, ["report", *map(str, arguments)])
    assert "Traceback" not in result.output
    return result.exit_code, result.stdout, " ".join(result.stderr.split())


@pytest.fixture(scope="module")
def page(folder: Path) -> Path:
    path = folder / "report.html"
    code, *_ = report(folder, "--output", path, "--markdown", folder / "report.md", "--roof", "cpu=3.2,40")
    assert code == 0
    return path


def markdown_of(source: Path, tmp_path: Path, *flags: str) -> str:
    code, _, err = report(source, "--output", tmp_path / "r.html", "--markdown", tmp_path / "r.md", *flags)
    assert code == 0, err
    return (tmp_path / "r.md").read_text()


def figures_of(page: Path) -> dict[str, Any]:
    found = re.search(r'id="figures">(.*?)</script>', page.read_text(), re.DOTALL)
    return json.loads(found[1]) if found else {}


def rows_of(markdown: str, caption: str) -> list[dict[str, str]]:
    """Read a table of a page in Markdown."""
    table = markdown.partition(f"{caption}:\n\n")[2].partition("\n\n")[0].splitlines()
    header, _, *rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table]
    return [dict(zip(header, row, strict=True)) for row in rows]


# The page is complete.


def test_the_page_loads_nothing_and_the_browser_is_told_so(page: Path) -> None:
    assert [each for each in Page(page.read_text()).loaded if not each.startswith("data:")] == []
    assert "default-src 'none'" in page.read_text()[:1500]
    assert page.read_text().count("* plotly.js v") == 1


def test_what_a_page_would_load_is_noticed() -> None:
    """The parser that proves the line above sees what it is to see."""
    text = (
        '<link rel="stylesheet" href="https://a/b.css"><script src="//c/d.js"></script><img src="e.png">'
        "<style>@import 'https://f'; p { background: url(https://g) }</style>"
    )
    assert len(Page(text).loaded) == 5


def test_every_plot_has_a_place_and_a_sentence_that_says_what_to_read_off_it(page: Path) -> None:
    text, figures = page.read_text(), figures_of(page)
    assert len(figures) > 8
    assert Page(text).plots == list(figures)
    readings = re.findall(r'<figcaption id="([^"]+)">([^<]+)', text)
    assert [name.replace("reading", "plot") for name, _ in readings] == list(figures)
    assert all(len(reading) > 40 for _, reading in readings)


def test_names_cannot_become_markup(tmp_path: Path) -> None:
    bad = "</script><b>x"
    compare(tmp_path / "results", bad, "transformers", "llama.cpp")
    report(tmp_path / "results", "--output", tmp_path / "r.html", "--title", "<script>alert(1)</script>")
    text = (tmp_path / "r.html").read_text()
    assert bad not in text
    assert "<script>alert" not in text
    assert "&lt;b&gt;x" in text
    figure, *_ = figures_of(tmp_path / "r.html").values()
    assert bad in figure["data"][0]["y"]
    assert any("&lt;b&gt;x" in label for label in figure["layout"]["yaxis"]["ticktext"])


# Its figures are those of the records.


def shown(cell: str) -> float:
    return float(cell.replace(",", ""))


@pytest.mark.parametrize("preset", EVERY_PRESET)
def test_every_figure_of_a_table_is_that_of_the_records(preset: str, tmp_path: Path) -> None:
    folder = EVERY_PRESET[preset](tmp_path / preset)
    latencies, rounds = defaultdict(list), defaultdict(list)
    answered: dict[Any, int] = defaultdict(int)
    for line in (folder / "records.jsonl").read_text().splitlines():
        record = json.loads(line)
        if record["kind"] == "call":
            latencies[record["case"]].append(1e3 * (record["done_s"] - record["sent_s"]))
            answered[record["case"], record["round"]] += record["items"]
        elif record["kind"] == "window":
            rounds[record["case"]].append(answered[record["case"], record["round"]] / record["seconds"])
    rows = rows_of(markdown_of(folder, tmp_path), f"All figures of {preset}")
    assert len(rows) == len(json.loads((folder / "plan.json").read_text())["cases"])
    for row in rows:
        took = latencies[row["row"]]
        if not took:
            assert row["status"].startswith("skipped")
            continue
        for percent in (50, 95, 99):
            assert shown(row[f"p{percent} ms"]) == pytest.approx(np.percentile(took, percent), rel=5e-3)
        assert shown(row["mean ms"]) == pytest.approx(np.mean(took), rel=5e-3)
        assert shown(row["std ms"]) == pytest.approx(np.std(took), rel=5e-3)
        assert shown(row["items/s"]) == pytest.approx(np.median(rounds[row["row"]]), rel=5e-3)
        assert int(row["calls"]) == len(took)


def test_the_sweep_is_drawn_as_throughput_against_latency_with_its_objective(tmp_path: Path) -> None:
    rows = rows_of(markdown_of(sweep(tmp_path / "sweep"), tmp_path), "All figures of sweep")
    figure, *_ = figures_of(tmp_path / "r.html").values()
    *drawn, objective = figure["data"]
    assert [trace["name"] for trace in drawn] == ["engine", "base"]
    for trace in drawn:
        mine = [row for row in rows if row["target"] == trace["name"]]
        assert trace["x"] == pytest.approx([shown(row["requests/s"]) for row in mine], rel=5e-3)
        assert trace["y"] == pytest.approx([shown(row["p99 ms"]) for row in mine], rel=5e-3)
        assert [text.partition(", ")[2] for text in trace["text"]] == [row["load"] for row in mine]
    assert (objective["name"], objective["y"]) == ("objective", [120.0, 120.0])
    best = max(rows, key=lambda row: shown(row["goodput/s"]))
    reading = Page((tmp_path / "r.html").read_text()).text
    assert f"come from {best['target']} with {best['load']}: {best['goodput/s']} a second" in reading


def test_lines_are_named_by_what_tells_them_apart(tmp_path: Path) -> None:
    run(tmp_path / "one")
    report(tmp_path, "--output", tmp_path / "r.html")
    speeds, latencies, *_ = figures_of(tmp_path / "r.html").values()
    assert [trace["name"] for trace in speeds["data"]] == ["engine, 2 labels", "engine, 4 labels"]
    assert speeds["data"][0]["x"] == [1, 2, 4, 8, 16, 32]
    assert len(latencies["data"]) == 4
    run(tmp_path / "two")
    report(tmp_path, "--output", tmp_path / "r.html")
    speeds, *_ = figures_of(tmp_path / "r.html").values()
    assert {trace["name"] for trace in speeds["data"]} == {
        f"engine, {labels} labels, {name}" for labels in (2, 4) for name in ("one", "two")
    }


def test_rows_that_failed_are_listed_and_neither_drawn_nor_the_best(tmp_path: Path) -> None:
    fast = case("engine", "probe-9-4000-3", name="broken")
    fine = [(case("engine", f"probe-9-{items}-3"), 50.0) for items in (1, 2)]
    bad = Call(
        case="broken", phase="timed", round=1, number=99, sent_s=0, done_s=1, items=4000, tokens=9, error="timeout"
    )  # fmt: skip
    folder = write_results(tmp_path / "run", "run", [*fine, (fast, 50.0)], extra=[bad])
    text = markdown_of(folder, tmp_path)
    row = next(row for row in rows_of(text, "All figures of run") if row["row"] == "broken")
    assert row["status"].startswith("failed; timeout")
    assert "broken of run is failed" in text.partition("## Limits")[2]
    headlines = text.partition("## ")[0]
    assert row["items/s"] not in headlines
    drawn = [trace["x"] for figure in figures_of(tmp_path / "r.html").values() for trace in figure["data"]]
    assert drawn
    assert not any(4000 in xs for xs in drawn)


def test_a_target_that_could_not_run_is_named(page: Path) -> None:
    text = (page.parent / "report.md").read_text()
    assert "Not measured: vllm-cpu. It is published for CUDA only." in text


# What is on it for which sources.


def test_every_section_for_which_there_is_something_and_no_other(folder: Path, tmp_path: Path) -> None:
    def sections(*paths: Path) -> list[str]:
        assert report(*paths, "--output", tmp_path / "r.html")[0] == 0
        return [each.partition(":")[0] for each in re.findall(r"<h2>([^<]+)", (tmp_path / "r.html").read_text())]

    last = ["Environment", "Targets", "Sources", "Limits"]
    assert sections(folder / "sweep" / "plan.json") == ["Rates and concurrencies", "Roofline", *last]
    assert sections(folder / "validation.json") == ["Validation", *last]
    assert sections(folder / "profile.json") == ["Device time and memory", *last]
    assert sections(folder / "v6e.json") == ["Device time and memory", "Roofline", "Sources", "Limits"]
    assert sections(folder) == [
        "Comparison", "Chunk sizes", "Rates and concurrencies", "Throughput and latency", "Stress",
        "Against another version", "Validation", "Device time and memory", "Roofline", *last,
    ]  # fmt: skip


def test_the_page_says_what_was_measured_and_where(page: Path) -> None:
    text = page.read_text()
    for each in (
        "Intel Xeon, 2 cores",
        "estimates for v5e:1x1, v6e:1x1",
        "scoring_algorithm=auto",
        "mis-bench compare",
    ):
        assert each in text
    assert "engine, winner on canonical-2000-500-20" in text
    assert "correctness: scores differ by up to 0.0300" in text


def test_what_was_not_validated_and_what_was_waived_has_not_passed(tmp_path: Path) -> None:
    large = "models/large"
    planned = [*validation().planned, large]
    validation(planned=planned, unavailable={large: "Too large."}).write(tmp_path / "v.json")
    text = markdown_of(tmp_path / "v.json", tmp_path)
    gates = rows_of(text, "Gates")
    passed, waived = (sum(row["status"] == status for row in gates) for status in ("passed", "waived"))
    assert (passed, waived) == (1, 1)
    assert f"{passed} of {len(gates)} ({waived} waived) gates passed." in text
    assert f"**{passed} of {len(gates)} ({waived} waived) gates**: of the validation passed" in text
    assert "Not validated: large. Too large." in text
    assert "**1**: model was not validated" in text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{}", "schema_version must be one of"),
        ("[1]", "schema_version must be one of"),
        ("not JSON", "Expecting value"),
        ('{"schema_version": "mis-validation-v2"}', "Field required"),
        ('{"topology": "v6e", "roofline_share": 1}', "Field required"),
    ],
)
def test_a_named_file_that_is_of_no_use_is_refused(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "x.json").write_text(content)
    code, _, err = report(tmp_path / "x.json", "--output", tmp_path / "r.html")
    assert code == 2
    assert message in err


def test_broken_records_in_a_folder_are_not_passed_over(tmp_path: Path) -> None:
    folder = run(tmp_path / "run")
    with (folder / "records.jsonl").open("a") as file:
        file.write('{"kind": "call"}\n')
    code, _, err = report(tmp_path, "--output", tmp_path / "r.html")
    assert code == 2
    assert re.search(r"records.jsonl:\d+: .*Field required", err)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{folder}"], "There are no results"),
        (["{folder}/none"], "does not exist"),
        (["{folder}", "--roof", "cpu=3"], "is not NAME=TFLOPS,GBYTES"),
        (["{folder}", "--roof", "cpu=3,0"], "is not NAME=TFLOPS,GBYTES"),
    ],
)
def test_mistakes_are_one_clear_message(tmp_path: Path, arguments: list[str], message: str) -> None:
    code, _, err = report(*(each.format(folder=tmp_path) for each in arguments), "--output", tmp_path / "r.html")
    assert code == 2
    assert message in err


# Rooflines.


@pytest.mark.parametrize(
    ("hardware", "tera"),
    [
        ("Intel Xeon, 2 cores", "3.2"),
        ("1 x TPU v6 lite", "918"),
        ("4 x TPU v6e", "918"),
        ("1 x TPU v5 lite", "197"),
        ("2 x TPU7x", "1,160"),
        ("8 x TPU v4", None),
        ("my board", "7"),
    ],
)
def test_points_lie_under_the_roof_of_their_own_hardware(tmp_path: Path, hardware: str, tera: str | None) -> None:
    folder = run(tmp_path / "run")
    plan = json.loads((folder / "plan.json").read_text())
    plan["environment"]["hardware"] = hardware
    (folder / "plan.json").write_text(json.dumps(plan))
    text = markdown_of(folder, tmp_path, "--roof", "cpu=3.2,4000000", "--roof", "my board=7,4000000")
    rows = rows_of(text, "Distance from the roof")
    assert rows
    roofs = [row.get("roof TFLOP/s") for row in rows]
    assert all(roof is None for roof in roofs) if tera is None else tera in roofs
    assert all(roof is None or shown(roof) <= shown(tera or "0") for roof in roofs)


def test_an_estimate_is_as_far_from_its_roof_as_it_says(tmp_path: Path) -> None:
    found = estimate()
    (tmp_path / "e.json").write_text(found.model_dump_json())
    (row,) = rows_of(markdown_of(tmp_path / "e.json", tmp_path), "Distance from the roof")
    assert shown(row["share of the roof"].rstrip("%")) / 100 == pytest.approx(found.roofline_share, rel=0.02)


# Room for names.

LONG = [
    f"target-{place}=mis=http://a-very-long-host-name.example.com:{30000 + place},scoring_algorithm=packed"
    for place in range(9)
]


def test_every_name_of_a_legend_has_its_lines() -> None:
    few = lines([Series(name, [1, 2], [3, 4]) for name in "ab"], Axis("x"), Axis("y")).layout
    many = lines([Series(name, [1, 2], [3, 4]) for name in LONG], Axis("x"), Axis("y")).layout
    area = [layout.height - layout.margin.b for layout in (few, many)]
    assert area[0] == area[1], "names take nothing from the plot"
    assert many.margin.b - few.margin.b >= LINE_PX * (2 * len(LONG) - 2)


def test_every_name_of_a_bar_has_its_lines() -> None:
    figure = bars([Series("measured", LONG, list(range(1, 10)))], Axis("x"))
    tallest = max(text.count("<br>") + 1 for text in figure.layout.yaxis.ticktext)
    assert tallest > 2
    assert figure.layout.height >= len(LONG) * LINE_PX * tallest


@pytest.mark.parametrize("values", [[1], [1, 2, 3], [0.5, 900], [1, 10**6], [11, 65], list(range(1, 200))])
def test_a_logarithmic_axis_has_a_few_labels(values: list[float]) -> None:
    axis = lines([Series("a", values, values)], Axis("x"), Axis("y")).layout.xaxis
    assert axis.range[0] < np.log10(values[0])
    assert axis.range[1] > np.log10(values[-1])
    assert (axis.tickvals is not None and len(axis.tickvals) < 12) or axis.dtick in ("D2", 1)
