"""Published clients of decisions, unchanged, against a real server: one for each run of `nox -s decision_clients`."""

import os
import subprocess
from pathlib import Path

import pytest

from decision_clients import CLIENTS
from decision_clients import __file__ as script
from mis_testing.server import running_server

CLIENT, PYTHON = os.environ.get("DECISION_CLIENT", ""), os.environ.get("DECISION_CLIENT_PYTHON", "")

pytestmark = pytest.mark.skipif(not CLIENT, reason="needs a client, which nox -s decision_clients installs")


def test_a_published_client_gets_what_it_needs(with_codes: Path) -> None:
    assert CLIENT in CLIENTS
    with running_server(with_codes, "--dtype", "float32", "--chunked-prefill-size", "512") as server:
        environment = os.environ | {"NO_PROXY": "*"}
        environment.pop("PYTHONPATH", None)  # it has an environment of its own
        command = [PYTHON, str(script), CLIENT, server.base_url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)
    assert done.returncode == 0, done.stderr
