"""`mis-bench report`: what is on the page for which artifacts, and that the page needs nothing else."""

import dataclasses
import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from mis_bench.artifacts.base import Artifact
from mis_bench.artifacts.profile import MemoryReport, Tensor
from mis_bench.artifacts.validation import ValidationResult, judged, waived
from mis_bench.cli import main
from mis_bench.report.section import number
from mis_bench.report.style import log_axis
from page_parts import Page
from report_artifacts import ENGINE, HERE, comparison, profile, run, validation, write_everything


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One artifact of every kind, two estimates, and a file that is none of ours."""
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


def test_the_page_loads_nothing(page: Path) -> None:
    loaded = Page(page.read_text()).loaded
    assert [each for each in loaded if not each.startswith("data:")] == []


def test_what_a_page_would_load_is_noticed() -> None:
    """The parser that proves the line above sees what it is to see."""
    text = (
        '<link rel="stylesheet" href="https://a/b.css"><script src="//c/d.js"></script><img src="e.png">'
        "<style>@import 'https://f'; p { background: url(https://g) }</style>"
    )
    assert len(Page(text).loaded) == 5


def test_the_browser_is_told_to_load_nothing(page: Path) -> None:
    assert "default-src 'none'" in page.read_text()[:1500]


def test_plotly_is_there_once(page: Path) -> None:
    assert page.read_text().count("* plotly.js v") == 1


def test_every_section_for_which_there_is_something_and_no_other(folder: Path, tmp_path: Path) -> None:
    def sections(*paths: Path) -> list[str]:
        assert report(*paths, "--output", tmp_path / "r.html")[0] == 0
        return re.findall(r'<section id="([^"]+)"', (tmp_path / "r.html").read_text())

    always = ["sources", "limits"]
    context = ["environment", "targets", *always]
    assert sections(folder / "run") == ["throughput", "latency", "roofline", *context]
    assert sections(folder / "comparison") == ["comparison-0", *context]
    assert sections(folder / "validation") == ["speed-up", "validation", *context]
    assert sections(folder / "stress") == ["stress", *context]
    assert sections(folder / "perf") == ["performance-0", "environment", *always]
    assert sections(folder / "matrix") == ["matrix", *context]
    assert sections(folder / "profile") == ["stages", *context]
    assert sections(folder / "v6e.json") == ["stages", "roofline", "memory", *always]
    assert set(sections(folder)) == {
        "comparison-0", "throughput", "latency", "speed-up", "stages", "roofline", "memory", "validation",
        "stress", "performance-0", "matrix", *context,
    }  # fmt: skip


def test_a_page_without_plots_has_no_plotly(folder: Path, tmp_path: Path) -> None:
    report(folder / "stress" / "stress.json", "--output", tmp_path / "r.html")
    assert (tmp_path / "r.html").stat().st_size < 50_000


def test_every_plot_says_what_to_read_off_it_and_has_units(page: Path) -> None:
    figures = json.loads(
        re.findall(r'<script type="application/json" id="figures">(.*?)</script>', page.read_text())[0]
    )
    assert len(figures) == 9
    for name, figure in figures.items():
        assert any(trace["x"] for trace in figure["data"]), name
        titles = [axis.get("title", {}).get("text") for key, axis in figure["layout"].items() if key.endswith("axis")]
        assert any(titles), name
    readings = re.findall(r"<figcaption[^>]*>(.+?)</figcaption>", page.read_text(), re.DOTALL)
    assert len(readings) == len(figures)
    assert all(len(reading) > 40 for reading in readings)


def test_the_page_says_what_was_measured_and_where(page: Path) -> None:
    text = page.read_text()
    assert "<h1>Multi-item scoring: 3 workloads</h1>" in text
    for each in (
        "Intel Xeon, 2 cores",
        "estimates for v5e:1x1, v6e:1x1",
        "scoring_algorithm=auto",
        "mis-bench compare",
    ):
        assert each in text
    assert "Not measured: vllm-cpu. vLLM is published for CUDA only." in text
    assert "not eligible: scores differ by up to 0.0300" in text


def test_markdown_holds_the_same_tables(folder: Path, page: Path) -> None:
    text = (folder / "report.md").read_text()
    assert "## Comparison on canonical-2000-500-20" in text
    assert "| engine | 65.1 |" in text
    assert "- **2 of 3 gates**: of the validation passed" in text


def test_names_cannot_become_markup(tmp_path: Path) -> None:
    found = comparison()
    found.notes.append("<script>alert(1)</script>")
    found.targets[0].name = found.best_native_view.rows[0].target = "</script><b>x"
    found.write(tmp_path / "c.json")
    report(tmp_path / "c.json", "--output", tmp_path / "r.html", "--title", "<i>title</i>")
    text = (tmp_path / "r.html").read_text()
    assert "<script>alert" not in text
    assert "</script><b>" not in text
    assert "<i>title" not in text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{}", "schema_version must be one of"),
        ("[1]", "schema_version must be one of"),
        ("not JSON", "Expecting value"),
        ('{"schema_version": "mis-run-v1"}', "Field required"),
        ('{"topology": "v6e", "roofline_share": 1}', "Field required"),
    ],
)
def test_a_named_file_that_is_no_artifact_is_refused(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "x.json").write_text(content)
    code, _, err = report(tmp_path / "x.json", "--output", tmp_path / "r.html")
    assert code == 2
    assert message in err


def test_a_broken_artifact_in_a_folder_is_not_passed_over(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"schema_version": "mis-run-v1"}')
    assert report(tmp_path, "--output", tmp_path / "r.html")[0] == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{folder}"], "There is no artifact"),
        (["{folder}/none"], "does not exist"),
        (["{folder}", "--roof", "cpu=3"], "is not NAME=TFLOPS,GBYTES"),
        (["{folder}", "--roof", "cpu=3,0"], "is not NAME=TFLOPS,GBYTES"),
    ],
)
def test_mistakes_are_one_clear_message(tmp_path: Path, arguments: list[str], message: str) -> None:
    code, _, err = report(*(each.format(folder=tmp_path) for each in arguments), "--output", tmp_path / "r.html")
    assert code == 2
    assert message in err


def test_points_lie_under_their_roofs(folder: Path, page: Path) -> None:
    rows = re.findall(r"([\d.]+)% \|$", (folder / "report.md").read_text().partition("## Roofline")[2], re.MULTILINE)
    assert len(rows) >= 8
    assert all(0 < float(share) <= 100 for share in rows[:8])


def markdown_of(folder: Path, artifact: Artifact, *flags: str) -> str:
    """The report on one artifact, as Markdown."""
    artifact.write(folder / "a.json")
    code, _, err = report(folder / "a.json", "--output", folder / "r.html", "--markdown", folder / "r.md", *flags)
    assert code == 0, err
    return (folder / "r.md").read_text()


def test_rows_that_failed_are_listed_and_neither_drawn_nor_the_best(tmp_path: Path) -> None:
    found = run()
    best = max(found.rows, key=lambda row: row.throughput_ips)
    broken = best.model_copy(
        update={
            "name": "broken", "throughput_ips": 98765.0, "throughput_interval": None, "status": "failed",
            "reason": "19 calls failed", "successful_runs": 1, "failed_runs": 19,
        }
    )  # fmt: skip
    text = markdown_of(tmp_path, found.model_copy(update={"rows": [*found.rows, broken]}))
    headlines, _, rest = text.partition("## ")
    assert number(best.throughput_ips) in headlines
    assert "98,8" not in headlines
    assert "failed: 19 calls failed" in rest
    assert rest.count("98,800") == 1  # the table of all rows, but no line's reading
    figures = re.findall(r'id="figures">(.*?)</script>', (tmp_path / "r.html").read_text())[0]
    assert "98765" not in figures


def test_a_run_of_failed_rows_alone_has_no_plot(tmp_path: Path) -> None:
    found = run()
    rows = [row.model_copy(update={"status": "failed", "reason": "all"}) for row in found.rows[:1]]
    text = markdown_of(tmp_path, found.model_copy(update={"rows": rows}))
    assert "failed: all" in text
    assert "## Latency" not in text


def test_waived_gates_have_not_passed(tmp_path: Path) -> None:
    found = validation()
    gate = waived(judged("max_abs_diff_jax_serial_vs_torch_serial", None, "at most", 0.02), "no PyTorch")
    found.models[0].gates.append(gate)
    text = markdown_of(tmp_path, found)
    assert "**2 of 4 gates**: of the validation passed, 1 waived" in text
    assert "2 of 4 gates passed, 1 waived." in text


def test_models_that_were_not_validated_are_named(tmp_path: Path) -> None:
    planned = ["models/large", "models/next"]
    found = ValidationResult.of(HERE, planned, [], {"models/large": "It is too large."})
    text = markdown_of(tmp_path, found)
    assert "**2**: models were not validated" in text
    assert "Not validated: large. It is too large." in text
    assert "Not validated: next. The command ended before." in text


@pytest.mark.parametrize(
    ("hardware", "tera"),
    [
        ("Intel Xeon, 2 cores", "3.2"),
        ("1 x TPU v6 lite", "918"),
        ("4 x TPU v6e", "918"),
        ("1 x TPU v5 lite", "197"),
        ("2 x TPU7x", "1,160"),
        ("8 x TPU v4", None),
        ("1 x NVIDIA H200", None),
        ("my board", "7"),
    ],
)
def test_points_lie_under_the_roof_of_their_own_hardware(tmp_path: Path, hardware: str, tera: str | None) -> None:
    found = run().model_copy(update={"environment": HERE.model_copy(update={"hardware": hardware})})
    found.target = dataclasses.replace(ENGINE, model="qwen3-0.6b")
    for row in found.rows:
        row.model = "qwen3-0.6b"
    text = markdown_of(tmp_path, found, "--roof", "cpu=3.2,4000000", "--roof", "my board=7,4000000")
    rows = re.findall(r"^\|.*measured.*\|$", text.partition("## Roofline")[2], re.MULTILINE)
    assert rows
    roofs = {row.split("|")[-3].strip() for row in rows}
    assert (tera or "-") in roofs
    if tera is None:
        assert roofs == {"-"}


def test_memory_is_that_of_one_of_the_devices(tmp_path: Path) -> None:
    found = profile()
    found.metadata.hardware.device_count = 4
    found.memory = [
        MemoryReport(
            stage="served", total_memory_mb=8 * 1024, largest_tensor="a", largest_memory_mb=8 * 1024,
            tensors={"a": Tensor(memory_mb=8 * 1024, shape=[1], dtype="bfloat16")}, process_memory_mb=1, pprof="m/s",
        )
    ]  # fmt: skip
    text = markdown_of(tmp_path, found)
    assert "| engine, served | 2 | - | - |" in text
    assert "| engine, served | a | 8 |" in text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (0, "0"), (65.14, "65.1"), (30123, "30,100"), (0.000371, "0.000371"), (-2.5, "-2.5")],
)
def test_numbers_have_no_exponents(value: float | None, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize("values", [[1], [1, 2, 3], [0.5, 900], [1, 10**6], [11, 65]])
def test_a_logarithmic_axis_has_a_few_labels(values: list[float]) -> None:
    axis = log_axis("x", values)
    assert 1 <= len(axis["tickvals"]) <= 12
