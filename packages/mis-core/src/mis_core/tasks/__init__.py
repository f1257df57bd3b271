"""One module per task: from the fields of a request to what the engine computes, and from its outputs to a result."""
