"""One Ray cluster for all tests that need one."""

import os
from collections.abc import Iterator

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from ray_node import RayNode, ray_node

# A Ray that somebody started on this machine leaves a token in the home directory; this cluster must not ask for it.
os.environ["RAY_AUTH_MODE"] = "disabled"

_OF_RAY = ("test_ray_data.py", "test_ray_serve.py")


class _BesideRay(LoadScopeScheduling):
    """Files go to any process, but those of the Ray cluster to one, or each process would start its own."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return "ray" if file.endswith(_OF_RAY) else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    return _BesideRay(config, log)


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[RayNode]:
    with ray_node() as node:
        yield node
