"""Gates as a table for people."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mis_bench.artifacts.validation import Gate, ModelValidation

_RULES = {"at most": "<=", "at least": ">=", "above": ">"}
_STYLES = {"passed": "green", "failed": "bold red", "not run": "bold red", "waived": "yellow"}
_PIPED_WIDTH = 200  # of a pipe; a terminal has its own


def show(model: ModelValidation) -> None:
    """Print the gates of a model to standard output."""
    _console().print(_table(model))


def conclude(models: Sequence[ModelValidation]) -> None:
    """Print one line for each model: that it passed, or which gates it did not."""
    for model in models:
        failed = [gate.name for gate in model.gates if not gate.passed]
        verdict = f"did not pass {', '.join(failed)}" if failed else "passed every gate"
        _console().print(Text(f"{model.model}: {verdict}", style="bold red" if failed else "green"))


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=_PIPED_WIDTH)


def _table(model: ModelValidation) -> Table:
    title = f"{model.model}, {model.about.name}, {model.about.dtype or 'dtype unknown'}"
    table = Table(title=title, title_justify="left")
    for heading, justify in (("gate", "left"), ("measured", "right"), ("threshold", "right"), ("verdict", "left")):
        table.add_column(heading, justify=justify, no_wrap=True)
    table.add_column("detail", overflow="fold")
    for gate in model.gates:
        table.add_row(*_cells(gate))
    gated = {gate.name for gate in model.gates}
    for count, found in model.performance.items():
        if (name := f"performance.{count}.speedup_vs_serial_p50") not in gated:
            detail = f"{found.serial_p50_ms:.1f} ms against {found.multi_p50_ms:.1f} ms"
            table.add_row(name, f"{found.speedup_vs_serial_p50:.3g}", "", "no gate", detail)
    return table


def _cells(gate: Gate) -> tuple[str | Text, ...]:
    measured = "" if gate.measured is None else f"{gate.measured:.3g}"
    threshold = f"{_RULES[gate.rule]} {gate.threshold:g}"
    return gate.name, measured, threshold, Text(gate.status, style=_STYLES[gate.status]), gate.detail
