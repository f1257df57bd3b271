"""Gates as a table for people."""

from rich.table import Table
from rich.text import Text

from mis_bench.validation.gates import ModelValidation, speedup_gate

_RULES = {"at most": "<=", "at least": ">=", "above": ">"}
_STYLES = {"passed": "green", "failed": "bold red", "not run": "bold red", "waived": "yellow"}


def verdict(model: ModelValidation) -> str:
    """Return one line: that a model passed, or which gates it did not."""
    failed = [gate.name for gate in model.gates if gate.status in ("failed", "not run")]
    return f"{model.model}: " + (f"did not pass {', '.join(failed)}" if failed else "passed every gate")


def as_table(model: ModelValidation) -> Table:
    """Return the gates of a model, and what else was timed."""
    table = Table(title=model.model, title_justify="left", caption_justify="left")
    for heading, justify in (("gate", "left"), ("measured", "right"), ("threshold", "right"), ("verdict", "left")):
        table.add_column(heading, justify=justify, no_wrap=True)
    table.add_column("detail", overflow="fold")
    for gate in model.gates:
        status = Text(gate.status, style=_STYLES[gate.status])
        table.add_row(gate.name, _figure(gate.measured), f"{_RULES[gate.rule]} {gate.threshold:g}", status, gate.detail)
    gated = {gate.name for gate in model.gates}
    for each in model.timings:
        if (name := speedup_gate(each.items)) not in gated:
            table.add_row(name, _figure(each.speedup), "", "no gate", each.detail)
    return table


def _figure(measured: float | None) -> str:
    return "" if measured is None else f"{measured:.3g}"
