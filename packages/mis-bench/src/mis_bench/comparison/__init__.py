"""Targets side by side: measured in turn, or read from matrices; one set of rules for who counts and who wins."""
