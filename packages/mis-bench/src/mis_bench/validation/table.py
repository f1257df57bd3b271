"""Gates as a table for people."""

from rich.table import Table
from rich.text import Text

from mis_bench.artifacts.validation import Gate, ModelValidation, Performance

_RULES = {"at most": "<=", "at least": ">=", "above": ">"}
_STYLES = {"passed": "green", "failed": "bold red", "not run": "bold red", "waived": "yellow"}


def verdict(model: ModelValidation) -> str:
    """Return one line: that a model passed, or which gates it did not."""
    failed = [gate.name for gate in model.gates if not gate.passed]
    return f"{model.model}: " + (f"did not pass {', '.join(failed)}" if failed else "passed every gate")


def as_table(model: ModelValidation) -> Table:
    """Return the gates of a model, and what else was timed."""
    table = Table(title=model.model, title_justify="left", caption_justify="left")
    for heading, justify in (("gate", "left"), ("measured", "right"), ("threshold", "right"), ("verdict", "left")):
        table.add_column(heading, justify=justify, no_wrap=True)
    table.add_column("detail", overflow="fold")
    gates = {gate.name: gate for gate in model.gates}
    speeds = {f"performance.{count}.speedup_vs_serial_p50": found for count, found in model.performance.items()}
    for name in [name for name in gates if name not in speeds] + list(speeds):
        table.add_row(*(_cells(gates[name]) if name in gates else _ungated(name, speeds[name])))
    return table


def _cells(gate: Gate) -> tuple[str | Text, ...]:
    measured = "" if gate.measured is None else f"{gate.measured:.3g}"
    threshold = f"{_RULES[gate.rule]} {gate.threshold:g}"
    return gate.name, measured, threshold, Text(gate.status, style=_STYLES[gate.status]), gate.detail


def _ungated(name: str, found: Performance) -> tuple[str, ...]:
    detail = f"{found.serial_p50_ms:.1f} ms against {found.multi_p50_ms:.1f} ms"
    return name, f"{found.speedup_vs_serial_p50:.3g}", "", "no gate", detail
