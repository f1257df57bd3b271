"""`python -m mis_bench`, the same as `mis-bench`."""

from mis_bench.cli import main

if __name__ == "__main__":
    main()
