"""Rows of the page of requirements, and the tests that each of them names."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "reference" / "requirements.md"

KEPT = ("done", "on CPUs", "replaced", "in part")
"""How a row begins to say where it stands if something is there that tests can show."""

STANDS = (*KEPT, "on paper", "open")
"""All ways to begin."""


@dataclass(frozen=True)
class Row:
    """A requirement.

    Attributes:
        name: Its number, or what is required where it has none.
        required: What is required.
        stands: Where it stands.
        where: Pages and commands.
        tests: Files of tests and tests, as pytest names them from the root of the repository.
    """

    name: str
    required: str
    stands: str
    where: str
    tests: tuple[str, ...]


def read_rows(page: str) -> list[Row]:
    """Return the rows of all tables of requirements, in order."""
    found = []
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("| ") or len(cells) < 4 or cells[-1] == "tests":
            continue
        required, stands, where, tests = cells[-4:]
        found.append(Row(cells[0], required, stands, where, tuple(_spelled_out(re.findall(r"`([^`]+)`", tests)))))
    return found


def _spelled_out(names: list[str]) -> Iterator[str]:
    """Yield names with their files, and files with their folders."""
    file = ""
    for name in names:
        file, test = (name.partition("::")[0] or file), name.partition("::")[2]
        package, _, rest = file.partition("/")
        path = f"packages/{package}/tests/{rest}" if package.startswith("mis-") else file
        yield f"{path}::{test}" if test else path


def selected(name: str) -> list[str]:
    """Return what pytest is to be given for a name: the file, or its tests of that name with their classes.

    Raises:
        LookupError: it selects nothing that runs every night; says why.
    """
    path, _, test = name.partition("::")
    if not (ROOT / path).is_file():
        raise LookupError(f"there is no {path}")
    found = {case: marks for case, marks in _tests_of(path).items() if not test or case.rpartition("::")[2] == test}
    if not found:
        raise LookupError(f"{path} has no {test or 'tests'}")
    if all("tpu_aot" in marks for marks in found.values()):
        raise LookupError(f"{name} needs the compiler of TPUs")
    return list(found) if test else [path]


@cache
def _tests_of(path: str) -> dict[str, set[str]]:
    """Return a file's tests as pytest names them, each with the marks that decorate it.

    The file is parsed and not imported: to collect all tests takes a minute.
    """
    body = ast.parse((ROOT / path).read_text("utf-8")).body
    functions = [(path, node) for node in body] + [
        (f"{path}::{each.name}", node) for each in body if isinstance(each, ast.ClassDef) for node in each.body
    ]
    return {
        f"{prefix}::{node.name}": {
            mark for each in node.decorator_list for mark in re.findall(r"mark\.(\w+)", ast.unparse(each))
        }
        for prefix, node in functions
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    }
