"""The path of every request, whatever its task: parse, submit, finish."""
