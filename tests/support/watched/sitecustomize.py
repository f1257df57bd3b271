"""Notes which functions of this process start between two signals; Python imports it, where it is on the path."""

import os
import signal
import sys
import threading
import time
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

PACKAGES = ("mis_kernels", "mis_core", "mis_server", "mis_bench", "mis_testing")

started: dict[CodeType, int] | None = None


def profile(frame: FrameType, event: str, argument: Any) -> None:
    if event == "call" and started is not None:
        started.setdefault(frame.f_code, time.monotonic_ns())


def begin(number: int, frame: FrameType | None) -> None:
    global started
    started = {}
    _write("begun", "")


def end(number: int, frame: FrameType | None) -> None:
    """Write the time of each file's first function and the file, from the package on."""
    global started
    noted, started = started or {}, None
    found = [(at, Path(code.co_filename).parts) for code, at in noted.items() if code.co_name != "<module>"]
    lines = [
        f"{at} {'/'.join(parts[parts.index(package) :])}\n"
        for at, parts in found
        for package in PACKAGES
        if package in parts
    ]
    _write("txt", "".join(lines))


def _write(suffix: str, text: str) -> None:
    """Write a file of this process, which is there as a whole or not at all."""
    written = Path(os.environ["MIS_WATCHED"], f"{os.getpid()}.part")
    written.write_text(text, "utf-8")
    written.rename(written.with_suffix(f".{suffix}"))


if "MIS_WATCHED" in os.environ:
    signal.signal(signal.SIGUSR1, begin)
    signal.signal(signal.SIGUSR2, end)
    threading.setprofile(profile)
    sys.setprofile(profile)
