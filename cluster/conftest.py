"""One Ray cluster for all tests that need one."""

import os
from collections.abc import Iterator

import pytest

from ray_node import RayNode, ray_node

# A Ray that somebody started on this machine leaves a token in the home directory; this cluster must not ask for it.
os.environ["RAY_AUTH_MODE"] = "disabled"


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[RayNode]:
    with ray_node() as node:
        yield node
