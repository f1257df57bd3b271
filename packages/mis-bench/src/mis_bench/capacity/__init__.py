"""Capacity on paper: how many chips and hosts a load takes, and how replicas behind a load balancer would behave."""
