"""MIS over HTTP: the command line, the routes and the errors. Knows no JAX; the engine has its own process."""

__version__ = "0.3.0"
