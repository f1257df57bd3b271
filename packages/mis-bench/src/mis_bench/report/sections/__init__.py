"""Sections of a report, a module each; a section is there if there is something to show."""
