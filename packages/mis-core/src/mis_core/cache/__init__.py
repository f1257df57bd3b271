"""The paged KV cache's host side: who holds which page, and which prefixes are already computed."""

from mis_core.cache.pages import OutOfPages, PagePool
from mis_core.cache.prefix import CacheStatistics, Prefix, PrefixCache

__all__ = ["CacheStatistics", "OutOfPages", "PagePool", "Prefix", "PrefixCache"]
