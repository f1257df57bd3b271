"""Scoring without HTTP: rows of files become scores, here (`file`) and, by `mis_server.ray`, on many machines."""

from mis_server.offline.asked import OfflineQuery
from mis_server.offline.file import Job, score_file

__all__ = ["Job", "OfflineQuery", "score_file"]
