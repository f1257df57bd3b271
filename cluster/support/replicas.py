"""Several real servers on one tiny checkpoint."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

from mis_testing.server import RunningServer, running_server

CONTEXT = 8192
FLAGS = ("--dtype", "float32", "--chunked-prefill-size", "256", "--max-total-tokens", "524288", "--skip-warmup")
"""A cache for all queries of a test, several times: what is evicted is no matter of routing."""


@contextmanager
def running_replicas(checkpoint: Path, count: int, flags: Sequence[str] = FLAGS) -> Iterator[list[RunningServer]]:
    """Run servers, started at the same time, until the block ends."""
    with ExitStack() as stack, ThreadPoolExecutor(count) as threads:

        def start(_: int) -> RunningServer:
            return stack.enter_context(running_server(checkpoint, *flags))

        yield list(threads.map(start, range(count)))
