"""`mis-bench checkpoint`."""

import click

from mis_bench.checkpoints import CheckpointError, resolve_checkpoint


@click.command()
@click.argument("spec")
def checkpoint(spec: str) -> None:
    """Print the folder of a checkpoint, so that a server can be started with it.

    SPEC is what --model takes elsewhere: a directory, a name that the model hub's client resolves, or random:SHAPE or
    random:SHAPE/DIVISOR, random weights of a published shape, which are written if they are not there.
    """
    try:
        click.echo(resolve_checkpoint(spec))
    except CheckpointError as error:
        raise click.BadParameter(str(error), param_hint="SPEC") from None
