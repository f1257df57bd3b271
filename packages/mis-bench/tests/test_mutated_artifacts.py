"""No figure of an artifact can be changed unnoticed, and no change of an artifact breaks the checking."""

import copy
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mis_bench.checking.folders import check_path

FREE = ("environment", "target", "seed", "concurrency", "tp_size", "timed_compilations", "total_runtime_seconds", "low",
        "high", "confidence", "vocab_size", "rate", "tolerated", "hourly_cost")  # fmt: skip
"""Fields that any value fits, or whose rules leave a range."""


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield paths to the numbers that other fields decide."""
    if isinstance(value, dict):
        for name, each in value.items():
            if name not in FREE:
                yield from leaves(each, (*path, name))
    elif isinstance(value, list):
        for index, each in enumerate(value):
            yield from leaves(each, (*path, index))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_figure_can_be_changed_unnoticed(stored: Path, tmp_path: Path, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(["run/run.json", "stress/stress.json", "matrix/matrix_results.json"]))
    original = json.loads((stored / name).read_text())
    path = data.draw(st.sampled_from(list(leaves(original))))
    fields = copy.deepcopy(original)
    holder = fields
    for key in path[:-1]:
        holder = holder[key]
    factor = data.draw(st.sampled_from([0.5, 0.9, 1.1, 2, 10]))
    changed = holder[path[-1]] * factor if holder[path[-1]] else 1.0
    holder[path[-1]] = changed if isinstance(holder[path[-1]], float) else max(int(changed), holder[path[-1]] + 1)
    folder = tmp_path / "mutated"
    shutil.copytree((stored / name).parent, folder, dirs_exist_ok=True)
    (folder / Path(name).name).write_text(json.dumps(fields))
    assert any(each.faults for each in check_path(folder)), path


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_replacement_is_judged_without_a_traceback(stored: Path, tmp_path: Path, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(["run/run.json", "stress/stress.json", "matrix/matrix_results.json"]))
    fields = json.loads((stored / name).read_text())
    holder: Any = fields
    while True:
        keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(holder[key], dict | list) or not holder[key] or data.draw(st.booleans()):
            break
        holder = holder[key]
    junk = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
    holder[key] = data.draw(junk | st.lists(junk, max_size=2) | st.dictionaries(st.text(), junk, max_size=2))
    folder = tmp_path / "replaced"
    shutil.copytree((stored / name).parent, folder, dirs_exist_ok=True)
    (folder / Path(name).name).write_text(json.dumps(fields))
    check_path(folder)
