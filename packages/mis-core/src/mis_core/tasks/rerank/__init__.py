"""The task `rerank`: how well each of many documents answers a query."""
