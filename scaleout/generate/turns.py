"""Long work done a stretch at a time: in a thread of its own, which gets on only while whoever drives it waits. Knows no model."""

from __future__ import annotations

from collections.abc import Callable
from threading import Semaphore, Thread
from typing import Generic, TypeVar

from attrs import define, field

T = TypeVar("T")


class _Dropped(BaseException):
    """Unwinds work that nobody wants any more."""


@define(eq=False)
class Turns(Generic[T]):
    """`work` calls `pause` wherever it can be interrupted. It and its driver never run at the same time."""

    work: Callable[[], T]
    _its_turn: Semaphore = field(factory=lambda: Semaphore(0))
    _our_turn: Semaphore = field(factory=lambda: Semaphore(0))
    _thread: Thread | None = None
    _dropped: bool = False
    _results: list[T] = field(factory=list)
    _error: BaseException | None = None

    def advance(self) -> bool:
        """Has the work get on to its next pause, or to its end. Whether it ended."""
        if self._thread is None:
            self._thread = Thread(target=self._run, name="turns", daemon=True)
            self._thread.start()
        self._its_turn.release()
        self._our_turn.acquire()
        return bool(self._results) or self._error is not None

    def result(self) -> T:
        """Of work that has ended. Raises what it raised."""
        assert self._thread is not None
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._results[0]

    def drop(self) -> None:
        """Ends work in the middle. Nothing happens to work that has ended or has not begun."""
        if self._thread is not None and self._thread.is_alive():
            self._dropped = True
            self._its_turn.release()
            self._thread.join()

    def pause(self) -> None:
        """Called by the work: lets the driver go on until it wants more."""
        self._our_turn.release()
        self._its_turn.acquire()
        if self._dropped:
            raise _Dropped

    def _run(self) -> None:
        self._its_turn.acquire()
        try:
            self._results.append(self.work())
        except BaseException as error:  # it is the driver's to handle, whatever it is
            self._error = error
        self._our_turn.release()
