"""What stands between a projection and attention: norms, and RoPE with the norms of queries and keys."""
