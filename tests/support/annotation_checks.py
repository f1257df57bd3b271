"""The checker of annotations that tests run with; see `--jaxtyping-packages` in the root `pyproject.toml`."""

import functools
from collections.abc import Callable
from typing import Any, Self

from beartype import BeartypeConf, FrozenDict, beartype
from jax.stages import ArgInfo

# jaxtyping decorates methods one by one, where beartype cannot know what `Self` is.
_checked = beartype(conf=BeartypeConf(hint_overrides=FrozenDict({Self: Any}), is_pep484_tower=True))


def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that checks its arguments; dataclasses may have descriptions of arrays in place of arrays.

    JAX makes these of the arguments of a function that is compiled ahead of its first call.
    """
    check = _checked(function)
    if function.__name__ != "__init__":
        return check

    @functools.wraps(check)
    def check_arrays(*arguments: Any, **named: Any) -> Any:
        described = any(isinstance(each, ArgInfo) for each in (*arguments, *named.values()))
        return (function if described else check)(*arguments, **named)

    return check_arrays
