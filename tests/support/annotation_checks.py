"""The checker of annotations that tests run with; see `--jaxtyping-packages` in the root `pyproject.toml`."""

from typing import Any, Self

from beartype import BeartypeConf, FrozenDict, beartype

# jaxtyping decorates methods one by one, where beartype cannot know what `Self` is.
checked = beartype(conf=BeartypeConf(hint_overrides=FrozenDict({Self: Any}), is_pep484_tower=True))
