"""`python -m mis_bench`, the same as `mis-bench`."""

import sys

if __name__ == "__main__" and not sys.flags.safe_path:
    del sys.path[0]  # the working directory, whose files would be imported in place of installed modules

from mis_bench.cli import run

if __name__ == "__main__":
    run()
