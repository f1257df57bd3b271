"""The task `score`: the probabilities of labels at the end of `query + item`."""
