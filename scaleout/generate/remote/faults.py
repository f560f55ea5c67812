"""What goes wrong between here and an engine, by what may be done about it. None of these reaches a client as it is.

Fault
├── Unreachable   no connection, or one that was never answered: the request can go to another engine
├── Lost          the connection broke, or fell silent, while the engine was at work
├── Busy          the engine takes no more (429, 503)
└── Broken        the engine answered with an error of its own (5xx), or with what is no answer
"""

from __future__ import annotations


class Fault(Exception):
    """`str()` of it is a sentence without the engine's name."""


class Unreachable(Fault):
    pass


class Lost(Fault):
    pass


class Busy(Fault):
    def __init__(self, message: str, retry_after: int) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Broken(Fault):
    pass
