"""Reads the fields of a request's body, or says what is wrong with them: what all tasks share."""
