"""How commands end before their time: on SIGINT or SIGTERM, or since a file cannot be written."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

INTERRUPTED = tuple(128 + number for number in (signal.SIGINT, signal.SIGTERM))
"""What a command that a signal ended exits with, as shells have it."""


class Interruption:
    """Which signal ends a command.

    Attributes:
        signal: SIGTERM if one came, else SIGINT.
    """

    def __init__(self) -> None:
        self.signal = signal.SIGINT

    @property
    def status(self) -> int:
        """One of `INTERRUPTED`: 128 and the signal's number."""
        return 128 + self.signal

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Let SIGTERM end what happens meanwhile as SIGINT does: with a `KeyboardInterrupt`, after cleaning up."""
        before = signal.signal(signal.SIGTERM, self._interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)

    def _interrupt(self, _signal: int, frame: FrameType | None) -> None:
        self.signal = signal.SIGTERM
        on_sigint = signal.getsignal(signal.SIGINT)
        if not callable(on_sigint):  # ignored, as shells have it for what runs in the background
            raise KeyboardInterrupt
        on_sigint(signal.SIGINT, frame)  # that of the event loop, if one runs


@contextmanager
def keeping(folder: Path) -> Iterator[None]:
    """Let whatever ends a measurement too early name the folder that keeps what was measured until then."""
    try:
        yield
    except BaseException as error:
        if folder.exists():
            error.add_note(f"What was measured until then is in {folder}.")
        raise


def told(error: OSError) -> str:
    """Return a sentence about a file that cannot be read or written, or a connection; some errors name nothing."""
    what = error.strerror or str(error) or type(error).__name__
    return f"{what}." if error.filename is None else f"{error.filename}: {what}."


def sentences(first: str, error: BaseException) -> str:
    """Return a sentence and those that were added to an exception on its way."""
    return " ".join([first, *getattr(error, "__notes__", ())])
