"""`mis-bench profile`: a scenario under the JAX profiler, and where its time and memory went.

`scenarios` says what is asked, `recording` makes the trace, `trace` reads it, `breakdown` adds up, `run` does all.
"""
