"""`mis-bench validate`: gates that a model has to pass before its scores are trusted.

`cases` says what is asked, and asks; `isolation`, `equivalence` and `run` measure; `gates` judges.
"""
