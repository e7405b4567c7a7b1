"""Why a message has no answer but an error: Flower's codes, which travel with it."""

from enum import IntEnum


class ErrorCode(IntEnum):
    """The code of an error in the place of an answer."""

    UNKNOWN = 0
    CLIENT_APP_RAISED_EXCEPTION = 2
    MESSAGE_UNAVAILABLE = 3
    REPLY_MESSAGE_UNAVAILABLE = 4
    NODE_UNAVAILABLE = 5
    CLIENT_APP_CRASHED = 8
