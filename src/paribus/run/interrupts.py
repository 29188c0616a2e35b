"""Ctrl-C, SIGTERM and a closed terminal as a fact to look at, not an exception in the middle of a write."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType, TracebackType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """While entered, asks to stop are noted in `happened` and make the descriptor `wake` readable.

    Outside the main thread signals cannot be caught; there nothing is changed.
    """

    def __enter__(self) -> Interrupts:
        self.happened = False
        self.wake, self._poke = os.pipe()
        os.set_blocking(self._poke, False)
        self._before = {}
        if threading.current_thread() is threading.main_thread():
            wanted = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
            self._before = {number: signal.signal(number, self._note) for number in wanted}
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        if not self.happened:
            self.happened = True
            os.write(self._poke, b"!")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self.wake)
        os.close(self._poke)
