"""The command `mis-server`: `serve`, `score`, `decide` and `calibrate`, whose options are fields of dataclasses."""

import click

from mis_server import __version__
from mis_server.cli.calibrate import CALIBRATE
from mis_server.cli.decide import DECIDE
from mis_server.cli.score import SCORE
from mis_server.cli.serve import SERVE


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(__version__, package_name="mis-server", message="%(prog)s %(version)s")
def main() -> None:
    """Score many items against one query with a language model."""


main.add_command(SERVE)
main.add_command(SCORE)
main.add_command(DECIDE)
main.add_command(CALIBRATE)
