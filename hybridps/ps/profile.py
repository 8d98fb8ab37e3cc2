"""What servers record about a profiled job: the messages that they handle and the rounds that they compute.

A profile is an array of records of fixed size, so that its cost is known in advance. It is sent in pages.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

RECORD = np.dtype(
    [
        ("kind", "S16"),
        ("table", "S64"),
        ("chunk", "i8"),
        ("group", "i8"),
        ("thread", "i8"),
        ("request", "i8"),
        ("began_ns", "i8"),
        ("took_ns", "i8"),
    ]
)
"""`kind`: the kind of the message, or `ROUND`; empty: the record is not used. `chunk`, `group`, `request`: -1 if there
is none; `request` is the number that the client gave the message.

`thread`: 0 for the thread that handles messages, 1 + n for worker thread n. Times are those of the monotonic clock of
the server's host.
"""

ROUND = b"round"

MOST_RECORDS = 1 << 16
"""The number of records of a job on a server. Later messages and rounds are only counted."""

PAGE_RECORDS = 1 << 12
"""The number of records of a page. Page 0 begins with a record whose `began_ns` is the number of all messages and
rounds that should have been recorded."""

PAGES = MOST_RECORDS // PAGE_RECORDS

State = Literal["run", "stop", "end"]
"""The state of a profile: it is being recorded, it is kept, or it is forgotten."""
