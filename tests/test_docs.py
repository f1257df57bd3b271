"""The pages of the HTTP reference say what the server does."""

import re
from pathlib import Path

import pytest

import mis_server.cli
from mis_core.config import EngineConfig
from mis_core.tokenization import Tokenizer
from mis_server.compatibility import ACCEPTED, WHY_WITHOUT_LIMIT
from mis_server.edge.middleware import ADMIN_PATHS, OPEN_PATHS
from mis_server.errors import ERRORS
from mis_server.settings import ServerConfig
from mis_server.telemetry.metrics import _ENGINE, _FRONT, Metrics
from mis_server.tokenizers.pool import TokenizerPool
from served_app import served_app

HTTP = Path(__file__).parent.parent / "docs" / "reference" / "http"


def rows(page: str) -> list[list[str]]:
    """Return the cells of every table row of a page."""
    lines = (HTTP / page).read_text().splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]


def words(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def test_every_error_is_in_the_table_with_its_status_and_type() -> None:
    table = {
        code: (int(status), kind.strip("`"))
        for status, kind, codes, _ in rows("errors.md")
        if status.isdigit()
        for code in words(codes)
    }
    assert table == ERRORS


def test_every_metric_is_in_the_table() -> None:
    listed = {name for row in rows("metrics.md") for name in words(row[0])}
    metrics = Metrics()
    metrics.engine.update(dict.fromkeys((key for key, *_ in _ENGINE), 1.0))
    metrics.engine.front = dict.fromkeys((key for key, *_ in _FRONT), 1.0)
    exposed = set()
    for family in metrics.registry.collect():
        if not family.name.startswith("process_"):
            exposed.add(family.name + ("_total" if family.type == "counter" else ""))
    assert listed - {"process_*"} == exposed


def test_every_route_is_in_the_index(checkpoint: Path) -> None:
    settings = ServerConfig(engine=EngineConfig(model="m"))
    app = served_app(_NoEngine(), settings, TokenizerPool(Tokenizer.from_pretrained(checkpoint)))
    routes = {path.replace("{model_id}", "{id}") for path in app.openapi()["paths"]} | {"/openapi.json", "/playground"}
    keys = {}
    for row in rows("index.md"):
        for path in re.findall(r"(/[a-z_/{}.0-9]+)", " ".join(words(row[0]))):
            keys[path] = row[1]
    assert set(keys) == routes
    assert {path for path, key in keys.items() if key == "none"} == OPEN_PATHS | {"/playground"}
    assert {path for path, key in keys.items() if key == "admin"} == ADMIN_PATHS


DOCS = HTTP.parent.parent


def test_every_flag_of_sglang_jax_is_in_a_table_with_its_effect() -> None:
    page = (DOCS / "guides" / "from-sglang-jax.md").read_text()
    taken, renamed, accepted = (table(page, heading) for heading in ("Taken", "Under another name", "Accepted"))
    assert accepted == {f"--{flag.name.replace('_', '-')}": flag.why for flag in ACCEPTED}
    assert WHY_WITHOUT_LIMIT.lower() in taken["--chunked-prefill-size"].lower()
    flags = {flag: option for option in mis_server.cli.main.commands["serve"].params for flag in option.opts}
    assert set(taken) <= set(flags)
    for name, text in renamed.items():
        assert flags[name] is flags[words(text)[0]]


def table(page: str, heading: str) -> dict[str, str]:
    """Return the second cells of the table below a heading, by the flags of the first."""
    section = page.split(f"### {heading}\n")[1].split("\n## ")[0].split("\n### ")[0]
    cells = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| `--")]
    return {flag: text for first, text in cells for flag in words(first)}


def measured(page: str) -> str:
    """Return the table of figures of a front page."""
    return page.split("\n## Measured\n\n")[1].split("\n\n")[0]


def test_both_front_pages_have_the_same_figures() -> None:
    readme = (DOCS.parent / "README.md").read_text()
    assert measured(readme).replace("](docs/", "](") == measured((DOCS / "index.md").read_text())


@pytest.mark.parametrize(
    ("figures", "path"), re.findall(r"\[([^]]+)\]\(([^)#]+)", measured((DOCS / "index.md").read_text()))
)
def test_figures_of_the_front_page_are_in_the_reports_they_name(figures: str, path: str) -> None:
    numbers = re.findall(r"\d[\d.,]*(?:e-\d+)?", figures)
    words_of_report = re.findall(r"\d[\d.,]*(?:e-\d+)?", (DOCS / path).read_text())
    assert numbers
    assert set(numbers) <= set(words_of_report)


class _NoEngine:
    ready = False
    info = None
    in_flight = restarts = 0

    async def score(self, request: object) -> None: ...

    async def statistics(self) -> dict[str, float]:
        return {}

    async def flush_cache(self) -> int:
        return 0

    async def start_profile(self, directory: str) -> None: ...

    async def stop_profile(self) -> None: ...


def test_every_page_is_in_the_menu() -> None:
    docs = HTTP.parent.parent
    menu = (docs.parent / "mkdocs.yml").read_text()
    pages = {str(page.relative_to(docs)) for page in docs.rglob("*.md")}
    assert sorted(page for page in pages if page not in menu) == []
