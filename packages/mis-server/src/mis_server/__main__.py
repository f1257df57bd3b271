"""`python -m mis_server` is `mis-server`."""

from mis_server.cli import main

if __name__ == "__main__":
    main(prog_name="mis-server")
