"""Call a SuperLink that may be in trouble for a while."""

import time
from collections.abc import Callable
from typing import TypeVar

from task import timing
from task.flower.grid import is_superlink_error
from task.text import logger
from task.wire.messages import one_line

T = TypeVar("T")


def patiently(call: Callable[[], T], timeout_s: float, troubled: Callable[[], None] = lambda: None) -> T:
    """Call the SuperLink; while it answers with an error of its own (HTTP 5xx), try again for some time.

    A SuperLink whose disk is full or whose database is locked answers so; Flower itself tries again only if
    the connection fails, which shows in the time that a call takes.

    `troubled` is called after each sign that the SuperLink is, or was, not well.
    """
    began, pause = time.monotonic(), 0.1
    while True:
        try:
            result = call()
        except Exception as err:  # of a SuperLink that is not well; any other is raised
            if not is_superlink_error(err) or time.monotonic() + pause > began + timeout_s:
                raise
            logger.warning("the SuperLink answered %s; trying again", one_line(str(err)))
            troubled()
        else:
            if time.monotonic() - began > timing.TROUBLE_S:
                troubled()
            return result
        time.sleep(pause)
        pause = min(2 * pause, timing.TROUBLE_PAUSE_S)
