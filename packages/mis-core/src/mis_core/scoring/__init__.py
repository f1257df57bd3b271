"""What a request to score is, how it is read, and how logits become scores. Knows neither JAX nor HTTP."""
