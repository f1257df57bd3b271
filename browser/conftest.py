"""Pages in a browser that reaches nothing but this machine, and what they ask for and complain about.

`nox -s tests_browser` runs these tests, with the Chromium that is on PATH; nothing is downloaded.
"""

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, sync_playwright

from mis_testing.server import RunningServer, running_server
from playground_pages import KEY, Watched

FLAGS = (
    "--no-sandbox", "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-quic", "--disable-dev-shm-usage", "--no-first-run",
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
)  # fmt: skip
SERVE = ("--dtype", "float32", "--chunked-prefill-size", "256", "--max-total-tokens", "8192")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--served` and `--pictures`."""
    parser.addoption("--served", help="model that the playground asks, in place of a tiny one with random weights")
    parser.addoption("--pictures", type=Path, help="folder for the pictures in the documentation")


@pytest.fixture(scope="module")  # Playwright's loop runs as long, and no other can in this process
def browser() -> Iterator[Browser]:
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        pytest.skip("needs chromium or google-chrome on PATH")
    with sync_playwright() as playwright, playwright.chromium.launch(executable_path=program, args=FLAGS) as browser:
        yield browser


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Callable[..., Watched]]:
    """`open_page(url, width=390, color_scheme="dark")`: the page in a new session of the browser."""
    with ExitStack() as stack:

        def opened(url: str, *, width: int = 1280, **options: Any) -> Watched:
            context = browser.new_context(viewport={"width": width, "height": 1000}, **options)
            stack.callback(context.close)
            watched = Watched(context.new_page())
            watched.page.goto(url)
            return watched

        yield opened


@pytest.fixture(scope="session")
def server(request: pytest.FixtureRequest, checkpoint: Path) -> Iterator[RunningServer]:
    """A server without a key, which compares layouts."""
    model = request.config.getoption("--served") or checkpoint
    with running_server(model, *SERVE, "--served-model-name", Path(model).name, "--enable-request-layout") as running:
        yield running


@pytest.fixture(scope="session")
def keyed(checkpoint: Path) -> Iterator[RunningServer]:
    """A server with a key, which takes one request at a time."""
    with running_server(checkpoint, *SERVE, "--api-key", KEY, "--max-queued-requests", "1") as running:
        yield running
