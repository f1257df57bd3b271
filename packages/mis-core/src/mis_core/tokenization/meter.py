"""How much tokenising one request may cause, and how much it has caused."""

TEXT = 2
"""Encoding an empty text takes about as long as encoding so many characters of the costliest kind."""


class TooMuchWork(Exception):
    """A request would have more tokenised than it may. It is no `RequestError`: no item of a request is at fault."""

    def __init__(self, most: int) -> None:
        super().__init__(most)
        self.most = most


class Meter:
    """Counts the cost of all that is tokenised for one request: its characters, and `TEXT` for each text.

    Everything counts whenever it is tokenised: a query that is tokenised once more with each item counts with each of
    them. So time and memory of the request have a bound before any of it is spent. Each request has a meter of its own.

    Attributes:
        cost: The sum so far.
        most: What it must not exceed; None for no limit.
    """

    def __init__(self, most: int | None = None) -> None:
        self.cost = 0
        self.most = most

    def count(self, characters: int, texts: int = 1) -> None:
        """Add texts that are about to be tokenised.

        Raises:
            TooMuchWork: it would be more than is allowed; nothing is added.
        """
        cost = self.cost + characters + TEXT * texts
        if self.most is not None and cost > self.most:
            raise TooMuchWork(self.most)
        self.cost = cost
