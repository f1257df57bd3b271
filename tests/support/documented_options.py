"""Options that pages name in a sentence, and which of them exist; whole commands are `documented_commands`.

Whose option it is follows from where it stands. A code span may name the command (`stress --seconds`), or a section
may be named for one. Elsewhere it is an option of a command that the page shows, or of `mis-server serve`; on a page
that shows none, of any of ours.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import click

import mis_bench.cli
import mis_server.cli
from documented_commands import OTHER_PROGRAMS, ROOT, commands

_FENCED = re.compile(r"^( *)```.*?^\1```", re.DOTALL | re.MULTILINE)
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]*")

OF_OTHER_PROGRAMS = {
    "--cov", "--cov-branch",  # pytest-cov
    "--load-format", "--speculative-algorithm",  # SGLang
    "--reranking",  # llama-server
    "--subprocesses",  # py-spy
    "--xla_cpu_max_isa", "--xla_dump_to", "--xla_gpu_enable_command_buffer",  # XLA
}  # fmt: skip
"""Options that pages name without the program that has them."""

_EVERYWHERE = ("serve", "noxfile.py", "conftest.py", "rank_reviews.py")
"""The server, and the files that declare the options of `nox` sessions: any page may name theirs."""


@dataclass(frozen=True, slots=True)
class Mention:
    """An option in a sentence, and the commands of ours one of which must have it."""

    option: str
    commands: tuple[str, ...]

    @property
    def fault(self) -> str | None:
        """What is wrong with it: None if it exists."""
        if any(self.option in options()[command] for command in self.commands):
            return None
        return f"{self.option} is no option of {', '.join(self.commands)}"


def mentions(page: str) -> Iterator[Mention]:
    """Yield the options of a page's sentences, in order; not those of commands that `commands` finds."""
    shown = {Path(word).name for command in commands(page) for word in command} & options().keys()
    anywhere = tuple(sorted({*shown, *_EVERYWHERE} if shown else options()))
    text = _FENCED.sub("", page)
    headings = list(_HEADING.finditer(text))
    ends = [*(each.start() for each in headings), len(text)]
    yield from _in_section(text[: ends[0]], anywhere)
    for heading, end in zip(headings, ends[1:], strict=True):
        name = heading[1].lower()
        yield from _in_section(text[heading.start() : end], (name,) if name in options() else anywhere)


def _in_section(section: str, owners: tuple[str, ...]) -> Iterator[Mention]:
    for place, part in enumerate(section.split("`")):  # odd places are code
        words = part.split() if place % 2 else []
        if words and (words[0] in OTHER_PROGRAMS or any(commands(f"`{part}`"))):
            continue
        named = [name for word in words if (name := Path(word).name) in options()]
        for option in _OPTION.findall(part):
            if option not in OF_OTHER_PROGRAMS:
                yield Mention(option, (named[0],) if named else owners)


@cache
def options() -> dict[str, set[str]]:
    """Return the options of every command of ours, by its name without `mis-bench` or `mis-server`, or its file's."""
    found: dict[str, set[str]] = {}
    for group in (mis_bench.cli.main, mis_server.cli.main):
        for name, command in group.commands.items():
            found.setdefault(name, {"--help"}).update(_declared(command))
    for path in _programs():
        source = path.read_text(encoding="utf-8")
        found.setdefault(path.name, {"--help"}).update(re.findall(r"""["' ](--[a-z][\w-]*)["')]""", source))
    return found


def _declared(command: click.Command) -> set[str]:
    """Return the options of a command, of a group those of all its commands."""
    own = {option for each in command.params for option in (*each.opts, *each.secondary_opts)}
    commands = command.commands.values() if isinstance(command, click.Group) else ()
    return own.union(*map(_declared, commands))


def _programs() -> Iterator[Path]:
    """Yield files that declare options: sessions, tests, benchmarks, examples, scripts, compilers for devices."""
    yield from (ROOT / name for name in ("noxfile.py", "conftest.py", "browser/conftest.py"))
    for pattern in ("packages/*/benchmarks", "packages/*/src/*/aot", "examples", "cluster/support", "deploy"):
        for folder in ROOT.glob(pattern):
            yield from (path for path in sorted(folder.rglob("*")) if path.suffix in (".py", ".sh"))
