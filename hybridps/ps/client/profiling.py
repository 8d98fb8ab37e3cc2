"""What a server has recorded of a job, read page by page."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from hybridps.ps import wire
from hybridps.ps.client.operations import Sent
from hybridps.ps.client.session import Session
from hybridps.ps.profile import MOST_RECORDS, PAGE_RECORDS, PAGES, RECORD


def read_records(session: Session, server: int) -> tuple[np.ndarray, int]:
    """Return what a server has recorded, as `Client.read_profile`."""
    pages: list[np.ndarray] = []
    for number in range(PAGES):
        page = np.zeros(1 + PAGE_RECORDS, RECORD)
        session.begin("reading of a profile", _page_of(server, number, page.view(np.int64))).wait()
        pages.append(page[1:])
        wanted = int(page[0]["began_ns"])
        if wanted <= len(pages) * PAGE_RECORDS:
            break
    records = np.concatenate(pages)
    return records[records["kind"] != b""], max(0, wanted - MOST_RECORDS)


def _page_of(server: int, number: int, out: np.ndarray) -> Callable[[int], Iterable[Sent]]:
    return lambda request: [Sent(server, wire.ProfilePage(request, number), (), {server: out})]
