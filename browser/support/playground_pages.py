"""A page of the playground, watched, and what people do on it."""

from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

import httpx
from playwright.sync_api import Page, expect

from mis_testing.server import RunningServer

KEY = "open-sesame"


@dataclass
class Watched:
    """A page, and what it did.

    Attributes:
        page: The page.
        asked: Addresses that it asked for.
        complaints: Errors and warnings of its console, among them each breach of its security policy, and of scripts.
    """

    page: Page
    asked: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", self._note)

    def _note(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    @property
    def overflow(self) -> int:
        """How many pixels the page is wider than its window."""
        return self.page.evaluate("() => document.documentElement.scrollWidth - innerWidth")


def address(server: RunningServer, **state: str) -> str:
    return f"{server.base_url}/playground" + (f"#{urlencode(state)}" if state else "")


def send(page: Page) -> None:
    page.click("#send")
    expect(page.locator("#status")).to_have_text("", timeout=60_000)


def ask(server: RunningServer, route: str, body: dict[str, Any]) -> Any:
    reply = httpx.post(f"{server.base_url}/{route}", json=body, trust_env=False, timeout=120)
    assert reply.status_code == 200, reply.text
    return reply.json()


def enter_key(page: Page) -> None:
    """Type the key, and wait until the server has answered what the page asks with it."""
    page.fill("#key", KEY)
    page.locator("#key").blur()
    expect(page.locator("#label-tokens li")).to_have_count(2)
