"""From text to token ids: those of the joined string `query + item`, with the query's tokens shared.

`tokenizer` reads files and templates, `text_tokenizer` encodes, `seam` proves where a query may be cut, `joined` turns
ids into segments. Nothing here knows devices or requests' other fields.
"""

from mis_core.tokenization.encoder import Meter, TooMuchWork
from mis_core.tokenization.joined import NOTHING, Joined, cut_segments, join_ids
from mis_core.tokenization.text_tokenizer import MAX_CHARACTERS
from mis_core.tokenization.tokenizer import Tokenizer
from mis_core.tokenization.vocabulary import Refuse

__all__ = [
    "MAX_CHARACTERS",
    "NOTHING",
    "Joined",
    "Meter",
    "Refuse",
    "Tokenizer",
    "TooMuchWork",
    "cut_segments",
    "join_ids",
]
