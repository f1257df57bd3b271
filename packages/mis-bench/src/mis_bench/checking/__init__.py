"""Checking artifacts: every file by itself, and the files of a folder against each other."""
