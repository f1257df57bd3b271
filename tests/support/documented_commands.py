"""Commands that pages show, and what is wrong with them.

A command is right if whoever copies it gets past its command line: the program, its subcommands and its flags exist,
and values are of the right kind. Files that a reader brings (models, results) need not exist; those of this repository
must.
"""

import ast
import copy
import dataclasses
import re
import shlex
import textwrap
import tomllib
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import click
from packaging.requirements import InvalidRequirement, Requirement

import mis_bench.cli
import mis_server.cli
from mis_bench.targets.registry import SPECS
from mis_bench.targets.spec import TargetSpec
from mis_core.config import EngineConfig

ROOT = Path(__file__).parent.parent.parent

_BLOCK = re.compile(r"^( *)```(?:bash|sh|console)\n(.*?)^\1```", re.DOTALL | re.MULTILINE)
_INLINE = re.compile(
    r"(?<!`)`((?:mis-bench|mis-server|nox|gcloud|py-spy|python -m mis|python packages/|python examples/)[^`]*)`(?!`)"
)
_ENDS = {";", "&&", "||", "|", "&", "(", ")"}
_PREFIXES = {"sudo", "time", "nohup"}
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")

OTHER_PROGRAMS = {
    ".", "cd", "cp", "curl", "export", "fuser", "gh", "git", "go", "haproxy", "hatch", "hf", "kill", "kubectl",
    "lm_eval", "echo", "gzip", "jevcompat", "mkdir", "pre-commit", "ps", "py-spy", "serve", "set", "socat", "source",
    "sparrow-decider", "systemctl", "transformers", "true", "uv", "vllm", "xprof", "zcat",
}  # fmt: skip
"""Programs that are not ours and whose flags are not checked; what is neither here nor checked is a fault."""

_OTHER_MODULES = {"pip", "sglang.launch_server", "uv", "venv"}

_TARGET_OPTIONS = {field.name for field in dataclasses.fields(EngineConfig)} | {
    "admin_key", "api_key", "batch", "logprobs", "model", "stateless", "threads", "token_ids",
}  # fmt: skip
"""Options of the engine, and of other targets as the README of mis-bench lists them."""

_TPU = "compute tpus"
_WHERE = {"--zone", "--project", "--quiet"}
GCLOUD: dict[str, set[str]] = {
    "config set": set(),
    "services enable": set(),
    f"{_TPU} accelerator-types list": _WHERE,
    f"{_TPU} tpu-vm create": {*_WHERE, "--accelerator-type", "--version", "--spot"},
    f"{_TPU} tpu-vm describe": {*_WHERE, "--format"},
    f"{_TPU} tpu-vm ssh": {*_WHERE, "--command", "--ssh-flag"},
    f"{_TPU} tpu-vm scp": {*_WHERE, "--recurse", "--scp-flag"},
    f"{_TPU} tpu-vm delete": _WHERE,
    f"{_TPU} tpu-vm list": _WHERE,
    f"{_TPU} queued-resources create": {*_WHERE, "--node-id", "--accelerator-type", "--runtime-version", "--spot"},
    f"{_TPU} queued-resources describe": {*_WHERE, "--format"},
    f"{_TPU} queued-resources delete": {*_WHERE, "--force"},
}
"""Subcommands of gcloud that pages may use, each with its flags; all of them need `--zone` if they know it."""


def commands(page: str) -> Iterator[list[str]]:
    """Yield every command of a page's shell blocks, and of its code spans that begin with a program of ours."""
    for block in _BLOCK.finditer(page):
        yield from _commands_of_shell(textwrap.dedent(block.group(2)))
    for span in _INLINE.finditer(page):
        words = span.group(1).split()
        if len(words) > 1 and "..." not in words:
            is_name = len(words) == 2 and words[0] in ("mis-bench", "mis-server")  # in a sentence, without its options
            yield from _commands_of_shell(" ".join([*words, "--help"] if is_name else words))


def faults(command: list[str]) -> list[str]:
    """Return what is wrong with a command; nothing if it would get past its command line."""
    program, *arguments = command
    name = re.sub(r"^python3?(\.\d+)?$", "python", Path(program).name) if program != "." else "."
    check = _CHECKS.get(name)
    if program.endswith(".sh"):
        return list(_shell(program, arguments))
    if check is None:
        return [] if name in OTHER_PROGRAMS else [f"{program} is not a program that these checks know"]
    return list(check(arguments))


def _commands_of_shell(text: str) -> Iterator[list[str]]:
    pending = ""
    for line in text.splitlines():
        pending += line.removeprefix("$ ") if not pending else line
        if pending.endswith("\\"):
            pending = pending[:-1] + " "
            continue
        try:
            words = _words(pending)
        except ValueError:  # a quotation goes on in the next line
            pending += "\n"
            continue
        pending = ""
        yield from _split(words)
    if pending:
        raise ValueError(f"A shell block ends within a quotation: {pending!r}")


def _words(line: str) -> list[str]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|<>()")
    lexer.whitespace_split, lexer.commenters = True, "#"
    return list(lexer)


def _split(words: list[str]) -> Iterator[list[str]]:
    command: list[str] = []
    is_target = False
    for word in [*words, ";"]:
        if word in _ENDS:
            if command:
                yield command
            command = []
        elif word in ("<", ">", ">>"):
            is_target = True
        elif is_target:
            is_target = False
        elif command or not (word in _PREFIXES or _ASSIGNMENT.match(word)):
            command.append(word)


def _click(group: click.Group) -> Callable[[list[str]], Iterator[str]]:
    def check(arguments: list[str]) -> Iterator[str]:
        if arguments in (["--help"], ["--version"]):
            return
        name, *rest = arguments or [""]
        if name not in group.commands:
            yield f"{group.name or 'the program'} has no command {name!r}"
            return
        if "--help" in rest:
            return
        try:
            _without_files(group.commands[name]).make_context(name, list(rest))
        except click.ClickException as error:
            yield error.format_message()
        if group is mis_bench.cli.main:
            yield from _targets(name, rest)

    return check


def _targets(command: str, arguments: list[str]) -> Iterator[str]:
    """Yield targets and options of the engine that do not exist; aliases and options may stand with a target."""
    for flag, value in pairwise(arguments):
        options: list[str] = []
        if flag == "--target":
            target = TargetSpec.parse(value)
            options = [f"{name}={given}" for name, given in target.options.items()]
            if target.spec.partition("=")[0] not in {each.partition("=")[0] for each in SPECS}:
                yield f"mis-bench {command}: there is no target {value}"
        elif flag == "--option":
            options = [value]
        for option in options:
            if option.partition("=")[0] not in _TARGET_OPTIONS:
                yield f"mis-bench {command}: targets have no option {option}"


def _without_files(command: click.Command) -> click.Command:
    """Return a command that parses as the given one, but looks at no file."""
    parses = copy.copy(command)
    parses.params = [copy.copy(parameter) for parameter in command.params]
    for parameter in parses.params:
        parameter.callback = None
        if isinstance(parameter.type, click.Path):
            parameter.type = click.STRING
    return parses


def _nox(arguments: list[str]) -> Iterator[str]:
    known = sessions()
    is_session = False
    for argument in arguments:
        if argument == "--":
            return
        if argument in ("-s", "--session"):
            is_session = True
        elif argument.startswith("-"):
            is_session = False
            if argument not in ("-l", "--list", "-R", "-r"):
                yield f"nox: {argument} is not a flag that these checks know"
        elif not is_session:
            yield f"nox: {argument} is no flag; sessions follow -s"
        elif re.sub(r"[-(].*", "", argument) not in known and argument != "NAME":
            yield f"noxfile.py has no session {argument}"


def sessions() -> set[str]:
    """Return the names of the noxfile's sessions."""
    tree = ast.parse((ROOT / "noxfile.py").read_text(encoding="utf-8"))
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    return {each.name for each in functions if any("session" in ast.unparse(mark) for mark in each.decorator_list)}


def _python(arguments: list[str]) -> Iterator[str]:
    if not arguments or arguments[0] in ("-c", "--version"):
        return
    if arguments[0] == "-m":
        module, *rest = arguments[1:] or [""]
        if module == "pip":
            yield from _pip(rest)
        elif module.startswith("mis_"):
            yield from _module(module, rest)
        elif module not in _OTHER_MODULES:
            yield f"python -m {module}: not a module that these checks know"
        return
    script = ROOT / arguments[0]
    if not script.is_file():
        yield f"there is no {arguments[0]}"
        return
    yield from _flags_in(script.read_text(encoding="utf-8"), arguments[0], arguments[1:])


def _shell(script: str, arguments: list[str]) -> Iterator[str]:
    """Yield what is wrong with a call of a script; some hand other options to a command of mis-bench."""
    if not (ROOT / script).is_file():
        yield f"there is no {script}"
        return
    source = (ROOT / script).read_text(encoding="utf-8")
    own = set(re.findall(r"^ *(--[a-z-]+)\)", source, re.MULTILINE))
    handed_to = next((command for command in (["matrix"], ["decisions", "speed"]) if _calls(source, command)), None)
    if handed_to is None:
        flags = [argument for argument in arguments if argument.startswith("--")]
        yield from (f"{script} has no flag {flag}" for flag in flags if flag not in own)
    elif arguments and arguments[0] not in own:
        yield from _CHECKS["mis-bench"]([*handed_to, *arguments])


def _calls(source: str, command: list[str]) -> bool:
    return re.search(rf"^ *mis-bench {' '.join(command)} ", source, re.MULTILINE) is not None


def _module(name: str, arguments: list[str]) -> Iterator[str]:
    package = name.split(".")[0]
    path = ROOT / "packages" / package.replace("_", "-") / "src" / Path(*name.split("."))
    if name in ("mis_bench", "mis_server"):
        yield from _CHECKS[package.replace("_", "-")](arguments)
        return
    main = next((each for each in (path / "__main__.py", path.with_suffix(".py")) if each.is_file()), None)
    if main is None:
        yield f"there is no module {name} that can be run"
        return
    yield from _flags_in(main.read_text(encoding="utf-8"), f"python -m {name}", arguments)


def _flags_in(source: str, program: str, arguments: list[str]) -> Iterator[str]:
    """Yield flags that a program's source does not declare."""
    known = set(re.findall(r"""["'](--[a-z][a-z0-9-]*)["']""", source)) | {"--help"}
    for argument in arguments:
        if argument == "--":
            return
        if argument.startswith("--") and argument.partition("=")[0] not in known:
            yield f"{program} has no flag {argument}"


def _pip(arguments: list[str]) -> Iterator[str]:
    if arguments[:1] != ["install"]:
        return
    for argument in arguments[1:]:
        if argument.startswith("-"):
            continue
        path, _, extras = argument.removeprefix("./").partition("[")
        if argument.startswith(("./", "packages/")):
            yield from _package(path, extras.rstrip("]"))
            continue
        try:
            requirement = Requirement(argument)
        except InvalidRequirement as error:
            yield f"pip install {argument}: {error}"
            continue
        if requirement.name.startswith("mis-"):
            yield from _package(f"packages/{requirement.name}", ",".join(requirement.extras))


def _package(path: str, extras: str) -> Iterator[str]:
    file = ROOT / path / "pyproject.toml"
    if not file.is_file():
        yield f"there is no package {path}"
        return
    known = tomllib.loads(file.read_text(encoding="utf-8"))["project"].get("optional-dependencies", {})
    for extra in filter(None, extras.split(",")):
        if extra not in known:
            yield f"{path} has no extra {extra!r}; it has {', '.join(known) or 'none'}"


def _gcloud(arguments: list[str]) -> Iterator[str]:
    text = " ".join(arguments)
    subcommand = next((each for each in GCLOUD if text.startswith(f"{each} ")), None)
    if subcommand is None:
        yield f"gcloud {text}: not a subcommand that these checks know"
        return
    flags = [argument.partition("=") for argument in arguments if argument.startswith("--")]
    for name, equals, _ in flags:
        if name not in GCLOUD[subcommand]:
            yield f"gcloud {subcommand} has no flag {name}, or these checks do not know it"
        elif bool(equals) == (name in ("--spot", "--quiet", "--recurse", "--force")):
            yield f"gcloud {subcommand}: write {name}{'' if equals else '=VALUE'}"
    if "--zone" in GCLOUD[subcommand] and "--zone" not in {name for name, _, _ in flags}:
        yield f"gcloud {subcommand}: --zone is missing"


_CHECKS: dict[str, Callable[[list[str]], Iterator[str]]] = {
    "mis-bench": _click(mis_bench.cli.main),
    "mis-server": _click(mis_server.cli.main),
    "nox": _nox,
    "python": _python,
    "pip": _pip,
    "gcloud": _gcloud,
}
