"""The task `classify`: labels of a classification head for whole inputs."""
