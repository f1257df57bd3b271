"""One Ray cluster for all tests that need one."""

import os
from collections.abc import Iterator

import pytest

from ray_node import RayNode, ray_node

# Whoever began a cluster of one process on this machine has a token in the home directory, which this one must not ask for.
os.environ["RAY_AUTH_MODE"] = "disabled"


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[RayNode]:
    with ray_node() as node:
        yield node
