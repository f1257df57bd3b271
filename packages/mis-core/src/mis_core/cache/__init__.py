"""The paged KV cache's host side: who locks which page, and which prefixes are already computed."""

from mis_core.cache.nodes import CacheStatistics, Inserted, PrefixLock
from mis_core.cache.prefix import PrefixCache

__all__ = ["CacheStatistics", "Inserted", "PrefixCache", "PrefixLock"]
