"""Scoring and serving on a Ray cluster; needs the extra `mis-server[ray]`."""

from mis_server.ray.dataset import Actors, score_dataset

__all__ = ["Actors", "score_dataset"]
