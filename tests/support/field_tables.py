"""The tables of fields in the HTTP reference, made of the declarations of bodies.

    python tests/support/field_tables.py

writes them into the pages, each after its comment `<!-- fields of ROUTE -->`.
"""

import re
from pathlib import Path

from mis_core.tasks.classify.body import ClassifyBody
from mis_core.tasks.decide.body import DecisionBody
from mis_core.tasks.decide.system_one.body import SystemOneBatchBody, SystemOneBody
from mis_core.tasks.fields.body import Body
from mis_core.tasks.fields.described import rows_of
from mis_core.tasks.rerank.body import RerankBody
from mis_core.tasks.score.body import ScoreBody
from mis_core.tasks.text.bodies import ChatBody, CompletionBody
from mis_server.tokenizers.tokens import DetokenizeBody, TokenizeBody

PAGES = Path(__file__).parents[2] / "docs" / "reference" / "http"

DECLARED: dict[str, type[Body]] = {
    "/v1/score": ScoreBody,
    "/v1/rerank": RerankBody,
    "/v1/decisions": DecisionBody,
    "/v1/systemone": SystemOneBody,
    "/v1/systemone/batch": SystemOneBatchBody,
    "/v1/classify": ClassifyBody,
    "/v1/token_classify": ClassifyBody,
    "/v1/completions": CompletionBody,
    "/v1/chat/completions": ChatBody,
    "/tokenize": TokenizeBody,
    "/detokenize": DetokenizeBody,
}
"""The body of each route."""

_TABLE = re.compile(r"(<!-- fields of (\S+) -->\n\n)(?:\|.*\n)*")


def table(declared: type[Body]) -> str:
    """Return a body's table in Markdown."""
    lines = ["| field | value | default | |", "|---|---|---|---|"]
    for name, noun, default, what_for in rows_of(declared):
        shown = default if default in ("", "required") else f"`{default}`"
        lines.append(f"| `{name}` | {noun} | {shown} | {what_for} |")
    return "\n".join([*lines, ""])


def with_tables(page: str, declared: dict[str, type[Body]]) -> str:
    """Return a page with its tables made anew."""
    return _TABLE.sub(lambda found: found[1] + table(declared[found[2]]), page)


if __name__ == "__main__":
    for path in PAGES.glob("*.md"):
        path.write_text(with_tables(path.read_text("utf-8"), DECLARED), "utf-8")
