"""How often a step runs what its arrays decide: exchanges between devices, and chunks of recurrent layers."""

import jax
import numpy as np

from mis_core.aot.hlo import CHUNKS, EXCHANGES, NOT
from mis_core.runner.arrays import StepArrays
from mis_kernels import Chunks
from mis_kernels.backends.xla.recurrence import Branches
from mis_kernels.segments import NOWHERE


class Repeats:
    """Counts of one step, of the device that has most chunks."""

    def __init__(self, arrays: StepArrays) -> None:
        """Read the arrays of a step, on the host."""
        self._exchanges = int(arrays.exchanges[0])
        self._branches: dict[str, np.ndarray] = {}
        self._chunks = 0
        if arrays.chunks is not None:
            busiest = int(np.argmax(arrays.chunks.count))
            chunks: Chunks = jax.tree.map(lambda x: np.asarray(x)[busiest], arrays.chunks)
            self._chunks = int(chunks.count)
            branches = Branches.of(chunks, arrays.token_ids.shape[1], NOWHERE)
            self._branches = {name: np.asarray(taken)[: self._chunks] for name, taken in branches._asdict().items()}

    def of(self, within: tuple[str, ...]) -> int:
        """Return how often an operation's surroundings are executed in the step (`HloOperation.within`)."""
        if not within:
            return 1
        loop, *branches = within
        if loop == EXCHANGES:
            return self._exchanges
        assert loop == CHUNKS, "branches are those of chunks"
        taken = np.ones(self._chunks, bool)
        for name in branches:
            flags = self._branches[name.removeprefix(NOT)]
            taken &= ~flags if name.startswith(NOT) else flags
        return int(taken.sum())
