"""Scheduling: which segments run in which step. Host code that knows neither JAX nor HTTP."""
