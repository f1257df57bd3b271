"""`mis-bench perf`: two commits asked in turn, each by an engine of its own, and whether the later one is slower.

`sources` puts both in place, `worker` is the program that loads either, `side` makes a target of it, `plan` plans and
carries out the rounds, `judge` computes verdicts from the records.
"""
