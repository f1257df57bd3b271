"""What a model can be asked for: one module for each task, from the fields of a request to its result."""
