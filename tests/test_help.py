"""`--help` of every command says what each option is for, and what happens without it, in full phrases."""

import inspect
import re
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

import mis_bench.cli
import mis_server.cli

PROGRAMS: dict[str, click.Group] = {"mis-bench": mis_bench.cli.main, "mis-server": mis_server.cli.main}
WITHOUT_EFFECT = "Accepted for compatibility"
"""Heading of flags of other servers; their help says why they are not needed."""
DANGLING = ("Of", "By", "Likewise")
"""First words of phrases whose subject is somewhere else."""
ADDED = re.compile(r"[^.] (repeatable|comma-separated|default:)")
"""What is a phrase of its own, but was added to another one."""


def _commands(command: click.Command, context: click.Context) -> Iterator[click.Context]:
    if not isinstance(command, click.Group):
        yield context
        return
    for name, below in command.commands.items():
        yield from _commands(below, click.Context(below, context, name, **command.context_settings))


CONTEXTS = [
    context
    for name, program in PROGRAMS.items()
    for context in _commands(program, click.Context(program, info_name=name, **program.context_settings))
]
of_each_command = pytest.mark.parametrize("context", CONTEXTS, ids=[each.command_path for each in CONTEXTS])


def faults(option: click.Option, context: click.Context) -> list[str]:
    """Return what the help of an option lacks."""
    record = option.get_help_record(context)
    if record is None:
        return []
    found = list(faults_of_phrases(option.help or ""))
    has_default = option.is_flag or option.required or "default:" in record[1].lower()
    if not (has_default or getattr(option, "group", None) == WITHOUT_EFFECT):
        found.append("does not say what happens without it")
    return [f"{option.opts[0]} {fault}" for fault in found]


def faults_of_phrases(text: str) -> Iterator[str]:
    """Yield what makes a help text less than full phrases."""
    if not text.endswith("."):
        yield "has no full stop"
    if not re.match(r"[A-Z0-9`]", text):
        yield "begins with a small letter or a sign"
    if text.split(" ")[0] in DANGLING:
        yield f"begins with {text.split()[0]}"
    if added := ADDED.search(text):
        yield f"adds {added[1]} to another phrase"


@of_each_command
def test_every_option_has_full_phrases_and_a_default(context: click.Context) -> None:
    options = [each for each in context.command.get_params(context) if isinstance(each, click.Option)]
    assert [fault for option in options for fault in faults(option, context)] == []


@of_each_command
def test_every_argument_is_explained(context: click.Context) -> None:
    for argument in context.command.params:
        if isinstance(argument, click.Argument):
            assert argument.make_metavar(context).strip("[].") in (context.command.help or "")


@pytest.mark.parametrize(
    ("option", "fault"),
    [
        (click.Option(["--size"], default=1, show_default=True, help="Items of a call"), "--size has no full stop"),
        (
            click.Option(["--fast"], is_flag=True, help="items of a call."),
            "--fast begins with a small letter or a sign",
        ),
        (click.Option(["--fast"], is_flag=True, help="[N]: items."), "--fast begins with a small letter or a sign"),
        (click.Option(["--fast"], is_flag=True, help="Of all targets."), "--fast begins with Of"),
        (click.Option(["--fast"], is_flag=True, help="Likewise for all."), "--fast begins with Likewise"),
        (
            click.Option(["--fast"], is_flag=True, help="A name; repeatable."),
            "--fast adds repeatable to another phrase",
        ),
        (
            click.Option(["--fast"], is_flag=True, help="A name; default: none."),
            "--fast adds default: to another phrase",
        ),
        (click.Option(["--size"], help="Items of a call."), "--size does not say what happens without it"),
        (click.Option(["--size"], show_default="all", help="Items of a call."), None),
        (click.Option(["--size"], is_flag=True, help="Show sizes."), None),
        (click.Option(["--size"], help="Offers of `--sizes`. Comma-separated. Default: all."), None),
    ],
)
def test_what_help_lacks_is_found(option: click.Option, fault: str | None) -> None:
    context = click.Context(click.Command("measure", params=[option]))
    assert faults(option, context) == [fault] * (fault is not None)


@of_each_command
def test_every_command_has_full_phrases(context: click.Context) -> None:
    paragraphs = inspect.cleandoc(context.command.help or "").split("\n\n")
    texts = [" ".join(text.split()) for text in paragraphs if not text.startswith("\b")]  # lists begin so
    assert [fault for text in texts for fault in faults_of_phrases(text)] == []


@pytest.mark.parametrize("command", ["mis-bench", "mis-bench decisions", "mis-server"])
def test_lists_of_commands_have_whole_phrases(command: str) -> None:
    program, *names = command.split()
    done = CliRunner().invoke(PROGRAMS[program], [*names, "--help"], terminal_width=80)
    _, commands = done.stdout.split("Commands:\n")
    assert [line for line in commands.splitlines() if not line.endswith(".") or line.endswith("...")] == []


@pytest.mark.parametrize("flag", ["-h", "--help"])
@of_each_command
def test_help_has_two_spellings(context: click.Context, flag: str) -> None:
    program, *names = context.command_path.split()
    done = CliRunner().invoke(PROGRAMS[program], [*names, flag], prog_name=program)
    assert done.exit_code == 0
    assert done.stdout.startswith(f"Usage: {context.command_path} ")
    assert "\\b" not in done.stdout
