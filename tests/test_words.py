"""Names in the sources keep to the glossary, axes of arrays to the list of shapes; names of tests are short."""

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = sorted(ROOT.glob("packages/*/src/**/*.py"))
FOLDERS_OF_TESTS = ("packages/*/tests", "tests", "browser", "cluster", "integrations")
TESTS = sorted(path for folder in FOLDERS_OF_TESTS for path in ROOT.glob(f"{folder}/**/test_*.py"))
MAX_TEST_NAME = 60
ARRAYS = re.compile(r"(Float|Int|UInt|BFloat|Bool|Shaped|Integer|Num|Inexact)\d*")


def table(path: str, heading: str) -> Iterator[list[str]]:
    """Yield the cells of each row below a heading of a page."""
    section = (ROOT / path).read_text().split(f"{heading}\n", 1)[1].split("\n## ")[0]
    for line in section.splitlines():
        if line.startswith("|") and not line.startswith("|---"):
            yield [cell.strip() for cell in line.strip("|").split("|")]


def names(path: Path) -> Iterator[tuple[str, int]]:
    """Yield what a module names, and the line."""
    yield path.stem, 1
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name, node.lineno
            case ast.arg():
                yield node.arg, node.lineno
            case ast.Name(ctx=ast.Store()):
                yield node.id, node.lineno
            case ast.Attribute(ctx=ast.Store()):
                yield node.attr, node.lineno


def axes(path: Path) -> Iterator[tuple[str, int]]:
    """Yield the axis words of a module's annotations, and the line."""
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Subscript(ast.Name(kind), ast.Tuple([_, ast.Constant(str(shape))])) if ARRAYS.fullmatch(kind):
                for axis in shape.split():
                    yield axis, node.lineno


def words(name: str) -> set[str]:
    return set(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower().split("_"))


def banned_words() -> set[str]:
    rows = list(table("docs/glossary.md", "## Words that no name has"))[1:]
    return {word for cells in rows for word in cells[0].split(", ")}


def narrow_words() -> dict[str, set[Path]]:
    """Return the files in whose names a word may stand, by its forms."""
    found: dict[str, set[Path]] = {}
    for word, _, files in list(table("docs/glossary.md", "## Words of one meaning"))[1:]:
        patterns = re.findall(r"`([^`]+)`", files)
        paths = [path for pattern in patterns for path in ROOT.glob(f"packages/*/src/{pattern}")]
        assert all(any(ROOT.glob(f"packages/*/src/{pattern}")) for pattern in patterns), f"{word}: a file is not there"
        for form in word.split(", "):
            found.setdefault(form, set()).update(paths)
    return found


def known_axes() -> set[str]:
    rows = list(table("docs/shapes.md", "# Shapes"))[1:]
    return {word for cells in rows for word in re.findall(r"`(\w+)`", cells[0])}


def is_known(axis: str, known: set[str]) -> bool:
    return axis.isdecimal() or axis.removeprefix("*").removesuffix("_plus_one") in known


def test_the_lists_are_read() -> None:
    assert {"patience", "spare", "take"} <= banned_words()
    assert {"tokens", "head_dim", "vocab"} <= known_axes()
    assert len(SOURCES) > 100


@pytest.mark.parametrize("package", ["kernels", "core", "server", "bench", "testing"])
def test_no_name_has_a_banned_word(package: str) -> None:
    banned = banned_words()
    found = [
        f"{path.relative_to(ROOT)}:{line} {name}"
        for path in SOURCES
        if path.parts[path.parts.index("packages") + 1] == f"mis-{package}"
        for name, line in names(path)
        if words(name) & banned
    ]
    assert found == []


def strays(paths: Iterable[Path], narrow: dict[str, set[Path]]) -> list[str]:
    """Return the names that have a word of one meaning where it would have another."""
    return [
        f"{path.name}:{line} {name}"
        for path in paths
        for name, line in names(path)
        if any(path not in narrow[word] for word in words(name) & narrow.keys())
    ]


def test_words_of_one_meaning_have_no_other() -> None:
    assert strays(SOURCES, narrow_words()) == []


def test_words_of_one_meaning_are_used() -> None:
    rows = list(table("docs/glossary.md", "## Words of one meaning"))[1:]
    for forms, sense, files in rows:
        paths = [path for pattern in re.findall(r"`([^`]+)`", files) for path in ROOT.glob(f"packages/*/src/{pattern}")]
        used = {word for path in paths for name, _ in names(path) for word in words(name)}
        assert not paths or used & set(forms.split(", ")), sense


def test_planted_words_of_another_meaning_are_found(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text("def cut_words() -> None:\n    place = turn_around = 1\n")
    assert strays([path], narrow_words()) == ["module.py:1 cut_words", "module.py:2 place", "module.py:2 turn_around"]


def test_axes_are_those_of_the_list() -> None:
    known = known_axes()
    found = [
        f"{path.relative_to(ROOT)}:{line} {axis}"
        for path in SOURCES
        for axis, line in axes(path)
        if not is_known(axis, known)
    ]
    assert found == []


def test_every_listed_axis_is_some_arrays() -> None:
    used = {axis.removeprefix("*").removesuffix("_plus_one") for path in SOURCES for axis, _ in axes(path)}
    assert known_axes() - used == set()


def test_planted_words_are_found(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text("def spare_pages(x: Int32[Array, 'tokens wombats']) -> None:\n    self.takeAll = 1\n")
    assert [name for name, _ in names(path) if words(name) & banned_words()] == ["spare_pages", "takeAll"]
    assert [axis for axis, _ in axes(path) if not is_known(axis, known_axes())] == ["wombats"]


def repeated(paths: Iterable[Path]) -> list[str]:
    """Return the public classes of modules whose name another one has."""
    places: dict[str, list[str]] = {}
    for path in paths:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(f"{path.name}:{node.lineno}")
    return [f"{name}: {', '.join(where)}" for name, where in places.items() if len(where) > 1]


def test_no_two_public_classes_have_one_name() -> None:
    assert repeated(SOURCES) == []


def test_planted_classes_of_one_name_are_found(tmp_path: Path) -> None:
    one, other = tmp_path / "one.py", tmp_path / "other.py"
    one.write_text("class Plan:\n    pass\n\n\nclass _Own:\n    pass\n")
    other.write_text("class _Own:\n    pass\n\n\nclass Plan:\n    pass\n")
    assert repeated([one, other]) == ["Plan: one.py:1, other.py:5"]


def long_tests(paths: Iterable[Path]) -> list[str]:
    """Return the tests whose names have more than `MAX_TEST_NAME` characters."""
    return [
        f"{path.name}:{node.lineno} {node.name}"
        for path in paths
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if node.name.startswith("test_") and len(node.name) > MAX_TEST_NAME
    ]


def test_test_names_are_short() -> None:
    assert len(TESTS) > 200
    assert long_tests(TESTS) == []


def test_planted_long_test_names_are_found(tmp_path: Path) -> None:
    path = tmp_path / "test_module.py"
    long = "test_" + 56 * "a"
    path.write_text(f"def {long[:-1]}():\n    pass\n\n\nclass TestIt:\n    async def {long}(self):\n        pass\n")
    assert long_tests([path]) == [f"test_module.py:6 {long}"]
