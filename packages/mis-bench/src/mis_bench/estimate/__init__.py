"""`mis-bench estimate`: the speed of a workload on TPUs that are not here."""
