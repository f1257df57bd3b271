"""What the tests of MIS share: real checkpoints without PyTorch, an outside oracle, tolerances, fixtures.

`import mis_testing` loads neither JAX nor PyTorch, and nothing here imports another `mis_*` package,
except the fixtures of `mis_testing.plugin`, when a test asks for them. Of production code only mis-bench
imports this package: its extra `random` makes checkpoints of random weights, and `llama-cpp` writes GGUF files.
"""

from mis_testing.checkpoint import tiny_checkpoint
from mis_testing.published import SHAPES
from mis_testing.shapes import CheckpointShape

__version__ = "0.2.0"

__all__ = ["SHAPES", "CheckpointShape", "__version__", "tiny_checkpoint"]
