"""How commands end before their time: on SIGINT or SIGTERM, or since a file cannot be written."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType


class Interruption:
    """Which signal ends a command.

    Attributes:
        signal: SIGTERM if one came, else SIGINT.
    """

    def __init__(self) -> None:
        self.signal = signal.SIGINT

    @property
    def status(self) -> int:
        """What a command that a signal ended exits with, as shells have it: 128 and the signal's number."""
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


def sentences(first: str, error: BaseException) -> str:
    """Return a sentence and those that were added to an exception on its way."""
    return " ".join([first, *getattr(error, "__notes__", ())])
