"""A group of benchmarks.hierarchy: it exchanges through a server for all groups or through its rack's, as told."""

from __future__ import annotations

import sys
import time

import msgspec
import numpy as np

from hybridps.config import Settings
from hybridps.memory import Layout
from hybridps.ps.client import Client
from hybridps.ps.rules import Elastic, Sum


class Told(msgspec.Struct):
    """The task of a group: its number among all groups and in its rack, bytes of an exchange, rule and addresses."""

    group: int
    groups: int
    group_in_rack: int
    groups_in_rack: int
    nbytes: int
    rule: str
    flat: str
    hierarchy: str


def main(told: Told) -> None:
    layout = Layout.of("float32", {"w": (told.nbytes // 4,)})
    settings = Settings(deadline_seconds=120.0)
    # Private memory: the values are sent even to a server on the same host.
    values, result = np.empty(layout.length, np.float32), np.empty(layout.length, np.float32)
    rule: Sum | Elastic = Sum() if told.rule == "sum" else Elastic(0.5 / told.groups)
    chunk = settings.usual_chunk_bytes // 4
    expected = np.float32(told.groups * (told.groups + 1) / 2)
    with (
        Client([told.flat], job="flat", group=told.group, groups=told.groups, settings=settings) as flat,
        Client(
            [told.hierarchy], job="racks", group=told.group_in_rack, groups=told.groups_in_rack, settings=settings
        ) as hierarchy,
    ):
        ways = {"flat": flat, "hierarchy": hierarchy}
        for client in ways.values():
            client.register("w", layout, None, rule)
        print("ready", flush=True)
        for line in sys.stdin:
            values[:], result[:] = told.group + 1, 0
            began = time.monotonic()
            ways[line.strip()].exchange("w", values, result, 0, layout.length).wait()
            took = time.monotonic() - began
            if told.rule == "elastic":
                # Groups reach each chunk in another order. Within a chunk all elements are equal.
                expected = np.repeat(result[::chunk], chunk)[: result.size]
            if not (result == expected).all():
                sys.exit(f"the answer is {result.min()} to {result.max()} instead of {expected.min()}")
            print(f"took {took}", flush=True)


if __name__ == "__main__":
    main(msgspec.json.decode(sys.argv[1], type=Told))
