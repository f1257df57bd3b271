"""One Ray cluster for all tests that need one."""

from collections.abc import Iterator

import pytest

from ray_node import RayNode, ray_node


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[RayNode]:
    with ray_node() as node:
        yield node
