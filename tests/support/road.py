"""Print the files of the five packages in which a function starts while a server answers one text `/v1/score`.

In order of each file's first function, of front, tokenizer and engine process together. Where something runs beside
one request and not beside each of a few, a timer has started it, and it is left out:

    python tests/support/road.py MODEL
"""

import os
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path

import httpx

from mis_testing.server import RunningServer, running_server

BODY = {"query": "Is this about a cat? ", "items": ["It purrs.", "It barks."], "label_token_ids": [5, 9]}
WATCHED = Path(__file__).parent / "watched"
_TIMES = 3
_WAIT_S = 60
_TAIL_S = 0.5  # what is done after a reply belongs to the request before


def files_of_a_score(model: Path) -> list[str]:
    """Serve a model, score once to be warm, and return the files that run in each of the next few times."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [str(WATCHED), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {"MIS_WATCHED": folder, "PYTHONPATH": os.pathsep.join(paths)}
        with running_server(model, env=environment) as server:
            _score(server)
            roads = [_road(server, Path(folder)) for _ in range(_TIMES)]
    always = [name for name in roads[0] if all(name in road for road in roads)]
    # By the median: a timer may have called a file of the road early in one of them.
    return sorted(always, key=lambda name: statistics.median(road.index(name) for road in roads))


def _road(server: RunningServer, folder: Path) -> list[str]:
    processes = [server.process.pid, *server.children]
    time.sleep(_TAIL_S)
    for process in processes:
        os.kill(process, signal.SIGUSR1)
    for process in processes:
        _take(folder / f"{process}.begun")
    _score(server)
    for process in processes:
        os.kill(process, signal.SIGUSR2)
    noted = sorted(line for process in processes for line in _take(folder / f"{process}.txt"))
    return list(dict.fromkeys(name for _, name in noted))


def _score(server: RunningServer) -> None:
    answer = httpx.post(f"{server.base_url}/v1/score", json=BODY, timeout=_WAIT_S, trust_env=False)
    answer.raise_for_status()


def _take(path: Path) -> list[tuple[int, str]]:
    """Return the times and files that a process has written, and remove them."""
    deadline = time.monotonic() + _WAIT_S
    while not path.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{path.stem} has not written what it has done.")
        time.sleep(0.01)
    text = path.read_text("utf-8")
    path.unlink()
    return [(int(at), name) for at, _, name in (line.partition(" ") for line in text.splitlines())]


if __name__ == "__main__":
    names = files_of_a_score(Path(sys.argv[1]))
    sys.stdout.write("\n".join([*names, f"{len(names)} files", ""]))
