"""Carrying a plan out: `demand` makes requests, `loop` sends them, `gating` compares scores, `execution` does all."""
