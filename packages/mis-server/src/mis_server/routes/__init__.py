"""One module per group of routes; each parses, calls the service and shapes the reply."""
