"""Gates that a model has to pass before its scores are trusted: isolation, equivalence, parity, speed."""
