"""What servers record of a job that is profiled: the messages that they handle and the rounds that they compute.

A profile is an array of records of fixed size, so that its cost is known before it begins. It travels in pages.
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
"""`kind`: of the message, or `ROUND`; empty: nothing is recorded here. `chunk`, `group`, `request`: -1 where there is
none; `request` is the number that its client gave a message.

`thread`: 0 for the thread that handles messages, 1 + n for number n of those that own chunks. Times are of the
monotonic clock of the server's host.
"""

ROUND = b"round"

MOST_RECORDS = 1 << 16
"""Of a job on a server; what comes later is only counted."""

PAGE_RECORDS = 1 << 12
"""Of a page. Page 0 begins with a record whose `began_ns` is the number of all that was to be recorded."""

PAGES = MOST_RECORDS // PAGE_RECORDS

State = Literal["run", "stop", "end"]
"""Of a profile: it is recorded, it is kept, it is forgotten."""
