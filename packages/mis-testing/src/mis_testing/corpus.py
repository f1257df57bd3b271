"""Text the tiny tokenizers are trained on: search queries, products and reviews, in a few scripts.

It is small on purpose: words that occur here become few tokens, everything else falls apart into
bytes, so both kinds of text are exercised.
"""

LABEL_WORDS = (" yes", " no", " maybe", "yes", "no", " Yes", " No", "Yes", "No", " true", " false")
"""Words that must be single tokens. Each gets a line of its own, often enough to be merged whole."""

SENTENCES = (
    "Does the document answer the question? Answer yes or no.",
    "The query asks for a light waterproof jacket for the mountains in winter.",
    "This product is a red cotton shirt with short sleeves, size 42, made in Portugal.",
    "I bought it for my daughter and she likes it very much; the colour is exactly as shown.",
    "The battery lasts about 12 hours, which is not as long as the description says.",
    "Returned it after three days because the screen didn't work and they'd sent the wrong cable.",
    "Question: which city is the capital of France?\nAnswer: Paris is the capital of France.\n",
    "Passage: a transformer reads the tokens of the query once and every candidate once.\n\n",
    "Rank the following candidates by relevance to the query. Candidate: ",
    "You are a helpful assistant. Judge whether the text meets the requirement.",
    "<Instruct>: Given a web search query, retrieve relevant passages that answer the query\n",
    "<Query>: what is the price of the new model\n<Document>: The price is 1999.95 dollars (tax included).",
    "We're sure it's fine, but we'll check; I'm told you've seen what they're doing.",
    "def score(query, items):\n    return [probability(query + item) for item in items]\n",
    "Order 66 ships on 2024-05-17 at 08:30; tracking number 1Z999AA10123456784.",
    "Le café est fermé à midi, mais l'hôtel près du château reste ouvert toute l'année.",
    "Die Straße ist größer als früher; überall hört man schöne Geräusche.",
    "Это хороший товар, но доставка была долгой.",
    "这个产品的质量很好,价格也合理。",
    "この商品はとても使いやすいです。",
    "المنتج جيد والسعر مناسب",
    "Great value 👍 would buy again 🙂!!! ... *** --- ###",
    "   indented text\twith tabs\r\nand windows line ends\r\n\r\n",
)


def corpus() -> list[str]:
    """Return the training lines; repetition makes the label words win their merges."""
    return list(SENTENCES) * 4 + [word for word in LABEL_WORDS for _ in range(200)]
