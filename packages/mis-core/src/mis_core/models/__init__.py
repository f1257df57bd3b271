"""Models: configuration, weights, and the one decoder that all families share."""
