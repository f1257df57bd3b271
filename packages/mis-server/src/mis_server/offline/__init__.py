"""Scoring without HTTP: rows of files become scores, here (`file`) and, by `mis_server.ray`, on many machines."""

from mis_server.offline.asked import Asked
from mis_server.offline.file import Job, score_file

__all__ = ["Asked", "Job", "score_file"]
