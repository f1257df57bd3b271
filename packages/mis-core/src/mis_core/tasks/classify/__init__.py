"""The tasks `classify` and `token_classify`: labels of a classification head, for whole inputs or for their tokens."""
