"""Scoring without HTTP: rows of files become scores, here (`file`) and, by `mis_server.ray`, on many machines."""

from mis_server.offline.file import Job, score_file
from mis_server.offline.query import OfflineQuery

__all__ = ["Job", "OfflineQuery", "score_file"]
