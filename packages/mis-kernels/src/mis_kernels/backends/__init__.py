"""What computes on which device: one folder per backend."""
