"""Commands of `mis-bench`, one module each; what they need is imported when they run."""
