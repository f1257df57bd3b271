"""One module per group of routes: each calls the service and builds the reply."""
