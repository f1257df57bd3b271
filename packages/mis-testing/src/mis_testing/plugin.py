"""The pytest plugin `mis_testing`: markers for tiers, and fixtures for a checkpoint, engine, server, oracle.

Fixtures import what they need inside: shape checking (`--jaxtyping-packages`) refuses to start when a
plugin has already imported a checked package. Everything made is shared by the whole session.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from mis_core import Engine
    from mis_testing.oracle import PointwiseOracle
    from mis_testing.server import RunningServer

MARKERS = {
    "tpu": "runs on a TPU, too (`nox -s tests_tpu`); elsewhere its kernels are emulated",
    "tpu_aot": "compiles for a TPU without having one",
    "gpu": "runs on a GPU, too (`nox -s tests_gpu`)",
    "quick": "runs before a commit, too (`nox -s tests_quick`)",
    "full": "takes long and is left to full runs (`nox -s tests_full`)",
    "parity": "compares with transformers on PyTorch",
}


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers."""
    for name, meaning in MARKERS.items():
        config.addinivalue_line("markers", f"{name}: {meaning}")


def _once(make: Callable[..., Any]) -> Callable[..., Any]:
    """Call a function once per distinct arguments, which need not be hashable."""
    made: dict[str, Any] = {}

    def made_once(*arguments: Any, **options: Any) -> Any:
        key = repr((arguments, sorted(options.items())))
        if key not in made:
            made[key] = make(*arguments, **options)
        return made[key]

    return made_once


@pytest.fixture(scope="session")
def interpret() -> bool:
    """Whether kernels for TPUs are emulated: everywhere but on a TPU. All that differs there for tests marked `tpu`."""
    import jax

    return jax.default_backend() != "tpu"


@pytest.fixture(scope="session")
def checkpoint_factory(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`checkpoint_factory("llama", head_dim=64)`: `tiny_checkpoint`, once per distinct arguments."""
    from mis_testing.checkpoint import tiny_checkpoint

    make = _once(lambda family, **sizes: tiny_checkpoint(tmp_path_factory.mktemp(family), family, **sizes))
    return lambda family="qwen3", **sizes: make(family, **sizes)


@pytest.fixture(scope="session")
def checkpoint(checkpoint_factory: Callable[..., Path]) -> Path:
    """Directory of a tiny Qwen3 checkpoint. Do not change it."""
    return checkpoint_factory()


@pytest.fixture(scope="session")
def engine_factory() -> "Iterator[Callable[..., Engine]]":
    """`engine_factory(path, dtype="float32")`: an engine, one per distinct arguments, closed at the end."""
    from mis_core import Engine

    with ExitStack() as stack:
        yield _once(lambda path, **options: stack.enter_context(Engine.from_pretrained(str(path), **options)))


@pytest.fixture(scope="session")
def engine(engine_factory: "Callable[..., Engine]", checkpoint: Path) -> "Engine":
    """A float32 engine on `checkpoint`, with steps of 256 tokens: soon ready."""
    from mis_testing.options import SMALL_ENGINE

    return engine_factory(checkpoint, **SMALL_ENGINE | {"skip_warmup": False})


@pytest.fixture(scope="session")
def oracle_factory() -> "Callable[..., PointwiseOracle]":
    """`oracle_factory(path, "float32")`: a `PointwiseOracle`, one per distinct arguments."""
    from mis_testing.oracle import PointwiseOracle

    return _once(PointwiseOracle)


@pytest.fixture(scope="session")
def server(checkpoint: Path) -> "Iterator[RunningServer]":
    """A float32 server on `checkpoint`, on a free loopback port, with steps of 256 tokens: soon ready."""
    from mis_testing.server import running_server

    flags = ("--dtype", "float32", "--chunked-prefill-size", "256", "--max-total-tokens", "8192")
    with running_server(checkpoint, *flags) as running:
        yield running
