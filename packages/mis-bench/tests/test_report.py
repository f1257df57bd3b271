"""`mis-bench report`: what is on the page for which sources, its figures against the records, what it loads."""

import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from markdown_it import MarkdownIt

from mis_bench.cli import main
from mis_bench.commits import SourceCommit
from mis_bench.report.page import Section, as_html, as_markdown
from mis_bench.report.plots import LINE_PX, Axis, Series, draw
from mis_bench.results.records import Call
from mis_bench.table import Table, number
from mis_bench.validation.gates import GatedFigure
from page_parts import Page, tables_of_html, tables_of_markdown
from report_artifacts import validation
from report_sources import EVERY_PRESET, case, compare, run, sweep, write_everything, write_results


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
    code, *_ = report(folder, "--output", path, "--markdown", folder / "report.md")
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


def test_every_plot_has_a_place_and_a_sentence_that_explains_it(page: Path) -> None:
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
    assert any(name.startswith(bad) for trace in figure["data"] for name in trace["y"])
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


def test_a_sweep_plots_throughput_against_latency_with_its_goal(tmp_path: Path) -> None:
    rows = rows_of(markdown_of(sweep(tmp_path / "sweep"), tmp_path), "All figures of sweep")
    figure, *_ = figures_of(tmp_path / "r.html").values()
    assert [trace["name"] for trace in figure["data"]] == ["engine", "base"]
    for trace in figure["data"]:
        mine = [row for row in rows if row["target"] == trace["name"]]
        assert trace["x"] == pytest.approx([shown(row["requests/s"]) for row in mine], rel=5e-3)
        assert trace["y"] == pytest.approx([shown(row["p99 ms"]) for row in mine], rel=5e-3)
        assert [text.partition(", ")[2] for text in trace["text"]] == [row["load"] for row in mine]
    (objective,) = figure["layout"]["shapes"]
    assert (objective["y0"], objective["y1"]) == (120.0, 120.0)
    assert "The dotted line is the objective of 120 ms." in Page((tmp_path / "r.html").read_text()).text


@pytest.mark.parametrize(("preset", "figure"), [("compare", "items/s"), ("perf", "x reference")])
def test_a_ranking_has_the_figures_and_intervals_of_the_table(preset: str, figure: str, tmp_path: Path) -> None:
    found = rows_of(markdown_of(EVERY_PRESET[preset](tmp_path / preset), tmp_path), f"All figures of {preset}")
    rows = {row["row"]: row for row in found if row[figure] != "-" and not row["status"].startswith("failed")}
    (drawn,) = figures_of(tmp_path / "r.html").values()
    assert sorted(name for trace in drawn["data"] for name in trace["y"]) == sorted(rows)
    for trace in drawn["data"]:
        ends = trace["error_x"]["array"], trace["error_x"]["arrayminus"]
        for name, x, above, below in zip(trace["y"], trace["x"], *ends, strict=True):
            written = f"{rows[name][figure]} {rows[name]['interval or rounds'] if figure == 'items/s' else ''}"
            value, low, high = (shown(number) for number in re.findall(r"[\d,.]+", written))
            assert (x, x + above, x - below) == pytest.approx((value, high, low), rel=5e-3)


def test_lines_are_named_by_what_tells_them_apart(tmp_path: Path) -> None:
    run(tmp_path / "one")
    report(tmp_path, "--output", tmp_path / "r.html")
    speeds, latencies, *_ = figures_of(tmp_path / "r.html").values()
    assert [trace["name"] for trace in speeds["data"]] == ["engine, 2 labels", "engine, 4 labels"]
    assert speeds["data"][0]["x"] == [1, 2, 4, 8, 16, 32]
    rows = rows_of(markdown_of(tmp_path / "one", tmp_path), "All figures of one")
    for trace in latencies["data"]:
        _, labels, percentile = trace["name"].split(", ")
        mine = [shown(row[f"{percentile} ms"]) for row in rows if row["labels"] == labels.partition(" ")[0]]
        assert trace["y"] == pytest.approx(mine, rel=5e-3)
    assert {trace["name"].rpartition(", ")[2] for trace in latencies["data"]} == {"p50", "p99"}
    run(tmp_path / "two")
    report(tmp_path, "--output", tmp_path / "r.html")
    speeds, *_ = figures_of(tmp_path / "r.html").values()
    assert {trace["name"] for trace in speeds["data"]} == {
        f"engine, {labels} labels, {name}" for labels in (2, 4) for name in ("one", "two")
    }


def test_failed_rows_are_listed_but_neither_drawn_nor_fastest(tmp_path: Path) -> None:
    fast = case("engine", "probe-9-4000-3", name="broken")
    fine = [(case("engine", f"probe-9-{items}-3"), 50.0) for items in (1, 2)]
    bad = Call(
        case="broken", phase="timed", round=1, number=99, sent_s=0, done_s=1, items=4000, tokens=9, error="timeout"
    )  # fmt: skip
    folder = write_results(tmp_path / "run", "run", [*fine, (fast, 50.0)], extra=[bad])
    text = markdown_of(folder, tmp_path)
    row = next(row for row in rows_of(text, "All figures of run") if row["row"] == "broken")
    assert row["status"].startswith("failed; timeout")
    (source,) = rows_of(text, "Sources")
    assert source["outcome"].startswith("failed; fastest: engine")
    drawn = [trace["x"] for figure in figures_of(tmp_path / "r.html").values() for trace in figure["data"]]
    assert drawn
    assert not any(4000 in xs for xs in drawn)


def test_a_target_that_could_not_run_is_named(page: Path) -> None:
    rows = rows_of((page.parent / "report.md").read_text(), "All figures of compare")
    (missing,) = (row for row in rows if row["target"] == "vllm-cpu")
    assert missing["status"].startswith("skipped")
    assert "It is published for CUDA only." in missing["status"]


# What is on it for which sources.


def test_every_section_for_which_there_is_something_and_no_other(folder: Path, tmp_path: Path) -> None:
    def sections(*paths: Path) -> list[str]:
        assert report(*paths, "--output", tmp_path / "r.html")[0] == 0
        return [each.partition(":")[0] for each in re.findall(r"<h2>([^<]+)", (tmp_path / "r.html").read_text())]

    last = ["Environment", "Targets"]
    assert sections(folder / "sweep" / "plan.json") == ["Overview", "Sweep", *last]
    assert sections(folder / "validation.json") == ["Overview", "Validation", *last]
    assert sections(folder / "profile.json") == ["Overview", "Device time and memory", *last]
    assert sections(folder / "v6e.json") == ["Overview", "Device time and memory"]
    assert sections(folder) == [
        "Overview", "Compare", "Matrix", "Perf", "Run", "Stress", "Sweep", "Validation", "Device time and memory",
        *last,
    ]  # fmt: skip


def test_the_page_says_what_was_measured_and_where(page: Path) -> None:
    text = page.read_text()
    for each in (
        "Intel Xeon, 2 cores",
        "qwen3-0.6b on v5e:1x1",
        "scoring_algorithm=auto",
        "mis-bench compare",
    ):
        assert each in text
    assert "winner: engine canonical-2000-500-20" in text
    assert "correctness: scores differ by up to 0.0300" in text


def test_the_page_names_the_commit_of_every_package(tmp_path: Path) -> None:
    commits = {"mis-core": SourceCommit(commit="1" * 40, is_dirty=True)}
    where = validation().environment.model_copy(update={"commits": commits})
    validation(environment=where).write(tmp_path / "v.json")
    assert "mis-core=111111111111 with changes" in markdown_of(tmp_path / "v.json", tmp_path)


def test_neither_waived_gates_nor_unvalidated_models_have_passed(tmp_path: Path) -> None:
    large = "models/large"
    planned = [*validation().planned, large]
    validation(planned=planned, unavailable={large: "Too large."}).write(tmp_path / "v.json")
    text = markdown_of(tmp_path / "v.json", tmp_path)
    (caption,) = re.findall(r"Gates of [^\n]*(?=:\n)", text)
    gates = rows_of(text, caption)
    passed, waived = (sum(row["verdict"] == status for row in gates) for status in ("passed", "waived"))
    assert (passed, waived) == (1, 1)
    assert f"{passed} of {len(gates)} gates passed, {waived} waived." in text
    assert "Not validated: large. Too large." in text


def test_validations_have_one_row_a_model_and_a_column_a_gate(tmp_path: Path) -> None:
    (model,) = validation().models
    fine = model.gates[0].model_copy(update={"name": "isolation.repetition_max_abs_diff"})
    models = [
        model.model_copy(update={"model": f"random:{name}/8", "gates": gates})
        for name, gates in (("qwen3-4b", model.gates), ("mistral-7b", [fine]))
    ]
    planned = [*(each.model for each in models), "random:llama-3.2-1b/8"]
    validation(planned=planned, models=models, unavailable={planned[2]: "Too large."}).write(tmp_path / "a" / "v.json")
    validation().write(tmp_path / "b" / "v.json")
    markdown = markdown_of(tmp_path, tmp_path)
    html = (tmp_path / "r.html").read_text()
    for tables in (tables_of_html(html), tables_of_markdown(markdown)):
        rows = {(row["file"], row["model"]): row for row in tables["Gates by model"]}
        assert list(rows) == [*(("a/v.json", each.model) for each in models), ("b/v.json", model.model),
                              ("a/v.json", planned[2])]  # fmt: skip
        for (file, name), row in rows.items():
            written = json.loads((tmp_path / file).read_text())
            assert set(row) >= {gate.name for gate in (*model.gates, fine)}
            found = [each for each in written["models"] if each["model"] == name]
            for gate in found[0]["gates"] if found else ():
                verdict, _, figure = row[gate["name"]].partition(" (")
                judged = GatedFigure.model_validate(gate)
                assert verdict == judged.status
                assert figure == ("" if gate["measured"] is None else f"{number(gate['measured'])})")
        verdicts = [row["verdict"] for row in rows.values()]
        assert verdicts == ["failed", "passed", "failed", "not run: Too large."]
        last = rows["a/v.json", planned[2]]
        assert all(last[gate.name] == "-" for gate in model.gates)


def test_names_cannot_become_markup_in_markdown_either(tmp_path: Path) -> None:
    title = "<img src=x onerror=alert(1)> *all* of [it](https://example.com)"
    compare(tmp_path / "results", "<b>x|`y`", "transformers", "*llama*")
    text = markdown_of(tmp_path / "results", tmp_path, "--title", title)
    parsed = MarkdownIt("commonmark").enable("table").parse(text)
    found = [part for each in parsed for part in (each, *(each.children or ()))]
    assert {each.type for each in found if each.content} == {"inline", "text"}
    shown = ["".join(part.content for part in each.children or ()) for each in parsed if each.type == "inline"]
    assert shown[0] == title
    assert any(each.startswith("<b>x|`y`") for each in shown)
    assert any(each.startswith("*llama*") for each in shown)


def test_no_heading_stands_over_nothing() -> None:
    sections = [
        Section("Empty"),
        Section("Devices", tables=[Table.of("None", [], {"a": str}), Table("Rows", ["a"], [["1"]])]),
    ]
    for text in (as_html("t", sections), as_markdown("t", sections)):
        assert "Empty" not in text
        assert "None" not in text
        assert "Devices" in text
        assert "Rows" in text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{}", "schema_version must be one of"),
        ("[1]", "schema_version must be one of"),
        ("not JSON", "Expecting value"),
        ('{"schema_version": "mis-validation-v3"}', "Field required"),
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
        (["{folder}"], "The given paths hold no results"),
        (["{folder}/none"], "does not exist"),
    ],
)
def test_mistakes_are_one_clear_message(tmp_path: Path, arguments: list[str], message: str) -> None:
    code, _, err = report(*(each.format(folder=tmp_path) for each in arguments), "--output", tmp_path / "r.html")
    assert code == 2
    assert message in err


def test_stages_are_drawn_as_shares_of_profiles_and_estimates(folder: Path, tmp_path: Path) -> None:
    text = markdown_of(folder, tmp_path)
    figure = list(figures_of(tmp_path / "r.html").values())[-1]
    drawn = {
        trace["name"].partition(",")[0]: dict(zip(trace["y"], trace["x"], strict=True)) for trace in figure["data"]
    }
    stages = rows_of(text, "profile.json: Operations by stage")
    assert drawn["engine"] == pytest.approx({row["stage"]: shown(row["share"].rstrip("%")) for row in stages}, abs=0.06)
    assert drawn["qwen3-0.6b on v6e:1x1"]["attention"] == pytest.approx(48)
    (row,) = (row for row in rows_of(text, "Priced from compiled programs, not measured") if "v6e" in row["what"])
    assert shown(row["ms a request"]) == pytest.approx(49.5)


# Room for names.

LONG = [
    f"target-{place}=mis=http://a-very-long-host-name.example.com:{30000 + place},scoring_algorithm=packed"
    for place in range(9)
]


def test_every_name_of_a_legend_has_its_lines() -> None:
    few = draw([Series(name, [1, 2], [3, 4]) for name in "ab"], Axis("x"), Axis("y")).layout
    many = draw([Series(name, [1, 2], [3, 4]) for name in LONG], Axis("x"), Axis("y")).layout
    area = [layout.height - layout.margin.b for layout in (few, many)]
    assert area[0] == area[1], "names take nothing from the plot"
    assert many.margin.b - few.margin.b >= LINE_PX * (2 * len(LONG) - 2)


def test_every_name_beside_a_plot_has_its_lines() -> None:
    figure = draw([Series("measured", list(range(1, 10)), LONG)], Axis("x"), Axis("", "names"))
    tallest = max(text.count("<br>") + 1 for text in figure.layout.yaxis.ticktext)
    assert tallest > 2
    assert figure.layout.height >= len(LONG) * LINE_PX * tallest


@pytest.mark.parametrize("values", [[1], [1, 2, 3], [0.5, 900], [1, 10**6], [640, 710, 755], list(range(1, 200))])
def test_labels_of_a_logarithmic_axis_lie_apart(values: list[float]) -> None:
    labels = draw([Series("a", values, values)], Axis("x"), Axis("y")).layout.xaxis.tickvals
    assert 0.9 * min(values) <= min(labels) <= max(labels) <= 1.1 * max(values)
    if len(values) > 1:
        assert len(labels) == 5
        assert (np.diff(np.log10(labels)) > 0.15 * np.log10(max(values) / min(values))).all()
