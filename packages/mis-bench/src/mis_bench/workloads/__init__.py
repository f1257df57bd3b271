"""What workloads are made of, and sequences of them with arrival times."""
