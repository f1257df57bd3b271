"""Generation in words that all parts share: what is asked of the engine, and the tokens that it answers."""
