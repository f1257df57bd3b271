"""jevcompat, the conformance suite of System One's servers, unchanged, against a real server; `nox -s system_one`."""

import itertools
import json
import os
import shutil
import string
import subprocess
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from mis_testing.server import running_server

JEVCOMPAT = os.environ.get("JEVCOMPAT", "")

pytestmark = pytest.mark.skipif(not JEVCOMPAT, reason="needs jevcompat, which nox -s system_one installs")


@pytest.fixture
def with_head(with_codes: Path, tmp_path: Path) -> Path:
    """The same checkpoint with a trained decision head, of the form of a judge."""
    slots = 2 + 10 + 255
    codes = [*string.ascii_uppercase, *map("".join, itertools.product(string.ascii_uppercase, repeat=2))]
    verbalizers = ["No", "Yes", *"0123456789", *codes[:255]]
    ranges = {"noul": [0, 2], "score": [2, 12], "choice": [12, slots]}
    rows = np.random.default_rng(0).standard_normal((slots, 64)).astype(np.float32)
    path = shutil.copytree(with_codes, tmp_path / "model")
    settings = {"slots": {"num_slots": slots, "verbalizers": verbalizers, "ranges": ranges}, "softcap": 4.0}
    (path / "judge_config.json").write_text(json.dumps(settings | {"adapter_subfolder": None}))
    (path / "calibration.json").write_text(json.dumps({"per_kind": dict.fromkeys(ranges, 1.5)}))
    save_file({"proj.weight": rows, "proj.bias": rows[:, 0].copy()}, path / "head.safetensors")
    return path


@pytest.mark.parametrize("key", [None, "a-key"], ids=["without a key", "with a key"])
def test_a_server_is_conformant_with_all_that_should_be(with_codes: Path, key: str | None) -> None:
    check_conformance(with_codes, key)


@pytest.mark.full
def test_so_it_is_with_a_trained_head(with_head: Path) -> None:
    check_conformance(with_head, None)


def check_conformance(checkpoint: Path, key: str | None) -> None:
    flags = ("--dtype", "float32", "--chunked-prefill-size", "512", *(() if key is None else ("--api-key", key)))
    with running_server(checkpoint, *flags) as server:
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
