"""The task `decide`: many questions about one input."""
