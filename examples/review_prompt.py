"""The prompt of `rank_reviews.py` and `rated_sentences.py`: three examples, the review, and the label words."""

QUERY = """\
Review: The hotel was quiet and the breakfast was excellent.
Sentiment: positive

Review: The screen cracked after a week and the shop would not help.
Sentiment: negative

Review: I laughed from the first page to the last.
Sentiment: positive

Review: """
AFTER_ITEM = "\nSentiment:"
LABELS = (" positive", " negative")
