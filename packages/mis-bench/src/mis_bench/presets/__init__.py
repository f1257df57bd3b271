"""Commands that ask targets and keep evidence: `validate`, and those that carry a plan out, which share `bench`."""
