"""The commands of the guide `serve-from-many-replicas.md` run as they stand, with pretended replicas."""

import os
import re
import signal
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest

from gateway import FILES
from mis_testing.server import free_port
from pretended_replica import pretended_replica

ROOT = FILES.parents[1]
GUIDE = (ROOT / "docs" / "guides" / "serve-from-many-replicas.md").read_text(encoding="utf-8")
BASE = ROOT / "deploy" / "kubernetes" / "serving" / "base"


def block(start: str) -> str:
    """The shell block that begins so."""
    (found,) = (
        each for each in re.findall(r"^```bash\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL) if each.startswith(start)
    )
    return found


def run(script: str, env: dict[str, str]) -> str:
    done = subprocess.run(["bash", "-euc", script], cwd=ROOT, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_gateway_is_started_and_asked_as_the_guide_says(tmp_path: Path) -> None:
    with ExitStack() as stack:
        replicas = [stack.enter_context(pretended_replica()) for _ in range(3)]
        lines = (FILES / "replicas.cfg").read_text()
        for number, replica in enumerate(replicas, 1):
            assert f"127.0.0.1:3000{number}" in lines
            lines = lines.replace(f"127.0.0.1:3000{number}", replica.url.removeprefix("http://"))
        (tmp_path / "replicas.cfg").write_text(lines)
        address, metrics = (f"127.0.0.1:{free_port()}" for _ in range(2))
        env = os.environ | {
            "MIS_GATEWAY_ADDRESS": address,
            "MIS_GATEWAY_METRICS": metrics,
            "MIS_GATEWAY_NAME": tmp_path.name,
            "MIS_GATEWAY_LOG": "/dev/log",
            "NO_PROXY": "*",
        }

        def here(text: str) -> str:
            for old, new in (
                ("deploy/haproxy/replicas.cfg", f"{tmp_path}/replicas.cfg"),
                ("/tmp/mis-gateway", f"{tmp_path}/mis-gateway"),
                ("127.0.0.1:8000", address),
                ("127.0.0.1:8404", metrics),
            ):
                text = text.replace(old, new)
            return text

        run(here(block("export MIS_GATEWAY_FOLDER")), env)
        stack.callback(os.kill, int((tmp_path / "mis-gateway.pid").read_text()), signal.SIGTERM)
        reply = run(here(block("curl --silent --include")), env)
        assert reply.startswith("HTTP/1.1 200")
        (name,) = re.findall(r"x-mis-replica: replica-(\d)", reply)
        assert b"Is this review positive?" in replicas[int(name) - 1].bodies[0]
        assert 'mis_gateway_keys_total{from="query"} 1' in run(here(block("curl --silent http://127.0.0.1:8404")), env)


def test_the_table_of_variables_has_all_with_their_defaults() -> None:
    rows = dict(re.findall(r"^\| `(MIS_GATEWAY_\w+)` \| `?(.+?)`? \|", GUIDE, re.MULTILINE))
    assert rows == dict(re.findall(r"^    presetenv (\S+) (\S+)", (FILES / "haproxy.cfg").read_text(), re.MULTILINE))


@pytest.mark.parametrize("replicas", [FILES / "replicas.cfg", BASE / "replicas.cfg"], ids=["haproxy", "kubernetes"])
def test_haproxy_takes_the_replicas(replicas: Path) -> None:
    env = os.environ | {"MIS_GATEWAY_FOLDER": str(FILES), "MIS_NAMESPACE": "n", "MIS_CLUSTER_DOMAIN": "cluster.local"}
    command = ["haproxy", "-c", "-f", str(FILES / "haproxy.cfg"), "-f", str(replicas)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
