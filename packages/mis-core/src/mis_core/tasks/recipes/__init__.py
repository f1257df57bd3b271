"""Recipes of rerank: what rerankers read, and which recipe a model has."""
