"""The paged KV cache's host side: who locks which page, and which prefixes are already computed."""

from mis_core.cache.prefix import CacheStatistics, PrefixCache, PrefixLock

__all__ = ["CacheStatistics", "PrefixCache", "PrefixLock"]
