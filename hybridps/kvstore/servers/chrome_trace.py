"""The records of a server as a Chrome trace, for chrome://tracing or Perfetto."""

from __future__ import annotations

from typing import Any

import numpy as np

from hybridps.ps.profile import ROUND


def chrome_trace(server: int, records: np.ndarray) -> dict[str, Any]:
    """Return a trace of one process, with a row for the thread that handles messages and one for each worker thread.

    `records`: of dtype `hybridps.ps.profile.RECORD`. Times are in microseconds since the first record.
    """
    first_ns = int(records["began_ns"].min()) if len(records) else 0
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": server, "args": {"name": f"server {server}"}}
    ]
    for thread in np.unique(records["thread"]).tolist():
        name = f"chunks, thread {thread - 1}" if thread else "messages"
        events.append({"ph": "M", "name": "thread_name", "pid": server, "tid": thread, "args": {"name": name}})
    for kind, table, chunk, group, thread, _request, began_ns, took_ns in records.tolist():
        args = {"table": table.decode(errors="replace"), "chunk": chunk, "group": group}
        events.append(
            {
                "ph": "X",
                "name": kind.decode(),
                "cat": "round" if kind == ROUND else "message",
                "pid": server,
                "tid": thread,
                "ts": (began_ns - first_ns) / 1000,
                "dur": took_ns / 1000,
                "args": {name: value for name, value in args.items() if value not in ("", -1)},
            }
        )
    return {"traceEvents": events, "displayTimeUnit": "ms"}
