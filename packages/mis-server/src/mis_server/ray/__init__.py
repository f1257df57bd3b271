"""Scoring and serving on a Ray cluster; needs the extra `mis-server[ray]`."""

from typing import TYPE_CHECKING, Any

from mis_server.ray.paths import look_there_last

look_there_last()  # before anything else is imported

from mis_server.ray.dataset import Actors, score_dataset  # noqa: E402

if TYPE_CHECKING:
    from ray.serve import Application

__all__ = ["Actors", "build_app", "score_dataset"]


def build_app(args: dict[str, Any]) -> "Application":
    """Return the application for `serve run mis_server.ray:build_app model=...`, or for a Serve config file.

    Args:
        args: `model`; any option of `mis-server serve` by its name in snake_case, except those of the address, of TLS
            and of the playground, which are Ray's business; and the fields of `mis_server.ray.serving.Replicas`.

    Raises:
        ConfigError: an option is unknown or out of range; names it.
    """
    from mis_server.ray.serving import application  # which Ray Data has no use for

    return application(args)
