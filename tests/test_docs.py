"""The pages of the HTTP reference say what the server does."""

import re
from pathlib import Path

import pytest

import mis_bench.cli
import mis_server.cli
from documented_commands import prose
from mis_core.config import EngineConfig
from mis_core.tasks import classify, complete, decide
from mis_core.tasks.chat import FIELDS, IGNORED, UNSUPPORTED
from mis_core.tokenization import Tokenizer
from mis_server.app import create_app
from mis_server.edge.keys import ADMIN_PATHS, OPEN_PATHS
from mis_server.errors import ERRORS
from mis_server.schemas.chat import ChatBody
from mis_server.schemas.classify import ClassifyBody
from mis_server.schemas.completions import CompletionBody
from mis_server.schemas.decisions import DecisionBody
from mis_server.schemas.score import ScoreBody
from mis_server.settings import ServerConfig
from mis_server.telemetry.metrics import _ENGINE, _FRONT, Metrics
from mis_server.tokenizers.pool import TokenizerPool

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
    app = create_app(_NoEngine(), settings, TokenizerPool(Tokenizer.from_pretrained(checkpoint)))
    routes = {path.replace("{model_id}", "{id}") for path in app.openapi()["paths"]} | {"/openapi.json", "/playground"}
    keys = {}
    for row in rows("index.md"):
        for path in re.findall(r"(/[a-z_/{}.0-9]+)", " ".join(words(row[0]))):
            keys[path] = row[1]
    assert set(keys) == routes
    assert {path for path, key in keys.items() if key == "none"} == OPEN_PATHS | {"/playground"}
    assert {path for path, key in keys.items() if key == "admin"} == ADMIN_PATHS


def test_every_field_of_a_score_request_is_in_its_table() -> None:
    listed = {name for row in rows("score.md") for name in words(row[0])}
    assert listed == set(ScoreBody.model_fields)


def test_every_field_of_a_decision_is_in_its_table() -> None:
    listed = {name for row in rows("decisions.md") if len(row) == 3 for name in words(row[0])}
    assert listed == {*DecisionBody.model_fields, "predicate", "choice", "score"}
    assert set(DecisionBody.model_fields) == set(decide.FIELDS)


def test_every_field_of_a_chat_is_on_its_page() -> None:
    page = (HTTP / "chat.md").read_text()
    listed = {name for row in rows("chat.md") for name in words(row[0])}
    ignored, unsupported = (page.split(start)[1].split("\n\n")[0] for start in ("No effect,", "Refused with"))
    assert listed == set(FIELDS) - set(IGNORED) - set(UNSUPPORTED)
    assert set(words(ignored)) == set(IGNORED)
    assert set(UNSUPPORTED) <= set(words(unsupported))
    assert set(ChatBody.model_fields) <= listed


def test_every_field_of_a_completion_is_on_its_page() -> None:
    page = (HTTP / "completions.md").read_text()
    listed = {name for row in rows("completions.md") for name in words(row[0])}
    ignored, unsupported = (page.split(start)[1].split("\n\n")[0] for start in ("No effect,", "Refused with"))
    assert listed == set(complete.FIELDS) - set(complete.IGNORED) - set(complete.UNSUPPORTED)
    assert set(words(ignored)) == set(complete.IGNORED)
    assert set(complete.UNSUPPORTED) <= set(words(unsupported))
    assert set(CompletionBody.model_fields) <= listed


def test_every_field_of_a_classification_is_on_its_page() -> None:
    page = (HTTP / "classify.md").read_text()
    listed = {name for row in rows("classify.md") for name in words(row[0])}
    ignored, unsupported = (page.split(start)[1].split("\n\n")[0] for start in ("No effect:", "Refused with"))
    assert listed == set(classify.FIELDS) - set(classify.IGNORED) - set(classify.UNSUPPORTED)
    assert set(words(ignored)) == set(classify.IGNORED)
    assert set(classify.UNSUPPORTED) <= set(words(unsupported))
    assert set(ClassifyBody.model_fields) <= listed | set(classify.IGNORED)


DOCS = HTTP.parent.parent
ELSEWHERE = ("decisions", "reports", "migrate-")  # pages that name flags of other programs, or of another time
PAGES = [path for path in sorted(DOCS.rglob("*.md")) if not any(part in str(path) for part in ELSEWHERE)]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(DOCS)))
def test_flags_that_pages_name_exist(path: Path) -> None:
    known = {"--help", "--subprocesses"}  # of py-spy
    for group in (mis_server.cli.main, mis_bench.cli.main):
        for command in group.commands.values():
            known |= {flag for parameter in command.params for flag in parameter.opts}
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", prose(path.read_text())))  # commands: test_doc_commands.py
    assert named <= known


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
