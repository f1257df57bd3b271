"""The command `mis-server`, which `python -m mis_server` is, too: a process of its own."""

import sys

if __name__ == "__main__" and not sys.flags.safe_path:
    del sys.path[0]  # the working directory, whose files would be imported in place of installed modules

from mis_server import cli


def main() -> None:
    """Run the command line of `mis_server.cli` in a process that has no use for PyTorch."""
    # `transformers`, which reads tokenizers, imports PyTorch where there is one: seconds and 200 MB for nothing.
    sys.modules.setdefault("torch", None)  # type: ignore[arg-type]
    cli.main(prog_name="mis-server")


if __name__ == "__main__":
    main()
