"""`mis-bench profile`: a scenario under the JAX profiler, and where its time and memory went.

`scopes` reads which part of the model an operation belongs to, `trace` when it ran, `breakdown` adds up,
`memory` describes what lies on the devices, `run` does all of it.
"""
