"""jevcompat, the conformance suite of System One's servers, unchanged, against a real server; `nox -s system_one`."""

import os
import subprocess
from pathlib import Path

import pytest

from mis_testing.server import running_server

JEVCOMPAT = os.environ.get("JEVCOMPAT", "")

pytestmark = pytest.mark.skipif(not JEVCOMPAT, reason="needs jevcompat, which nox -s system_one installs")


@pytest.mark.parametrize("key", [None, "a-key"], ids=["without a key", "with a key"])
def test_a_server_is_conformant_with_all_that_should_be(with_codes: Path, key: str | None) -> None:
    flags = ("--dtype", "float32", "--chunked-prefill-size", "512", *(() if key is None else ("--api-key", key)))
    with running_server(with_codes, *flags) as server:
        command = [JEVCOMPAT, "test", server.base_url, *(() if key is None else ("--key", key))]
        environment = os.environ | {"NO_PROXY": "*"}
        environment.pop("PYTHONPATH", None)  # it has an environment of its own
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment)
    verdict = done.stdout.strip().splitlines()[-1]
    assert done.returncode == 0, done.stdout
    must, should = (pair.split()[-1].split("/") for pair in verdict.rpartition(": ")[2].split(", "))
    assert verdict.startswith("conformant")
    assert must == ["32", "32"]
    assert should[0] == should[1], done.stdout
    assert int(should[1]) == (13 if key is None else 15)
