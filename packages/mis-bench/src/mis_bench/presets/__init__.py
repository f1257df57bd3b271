"""Commands that carry a plan out: `run`, `compare`, `matrix`, `stress` and `sweep`; `bench` is what they share."""
