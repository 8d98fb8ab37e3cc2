"""Racks behind limited links: all groups at one server, compared with racks that have servers below a parent.

python -m benchmarks.hierarchy --json hierarchy.json

This needs Linux, root, `ip` and `tc` (see hybridps/links.py). Both ways are open at the same time and measured in turn.
The bytes that cross the link of a rack are read from the counters of its network interface.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated

import msgspec
import typer

from benchmarks.ending import end_within
from benchmarks.hierarchy_group import Told
from benchmarks.results import Result, describe_hardware, size_text
from benchmarks.world import end_when_signalled
from hybridps.config import Settings
from hybridps.errors import HybridPSError
from hybridps.links import INTERFACE, LAUNCHER, Links, LinksError, bits_per_second, limited_links
from hybridps.processes import ServerProcess, die_with_parent

WAYS = ("flat", "hierarchy")
RULES = ("sum", "elastic")
END_SECONDS = 10.0
QUIET_SECONDS, QUIET_BYTES, MOST_SECONDS = 0.3, 64 << 10, 60.0
"""A link is quiet if fewer bytes than these cross it in this time."""

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def hierarchy(
    racks: Annotated[int, typer.Option(min=1, help="Racks, each behind a link of its own.")] = 2,
    groups: Annotated[int, typer.Option(min=1, help="Groups in each rack.")] = 2,
    megabytes: Annotated[int, typer.Option(min=1, help="Size of the exchange, in units of 2^20 bytes.")] = 16,
    rule: Annotated[str, typer.Option(help="sum (in step) or elastic (at arrival).")] = "sum",
    rate: Annotated[str, typer.Option(help="Rate of a link in each direction.")] = "200mbit",
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; the result is their median.")] = 5,
    json_path: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the results here.")] = None,
) -> None:
    """Exchange the sum of all groups' values, through one server and through the servers of racks."""
    try:
        bits_per_second(rate)
        if rule not in RULES:
            raise ValueError(f"{rule!r} is none of {', '.join(RULES)}")
        with limited_links(racks, rate) as links:
            measured = measure(links, groups, megabytes << 20, rule, rounds)
    except (ValueError, LinksError, RuntimeError, HybridPSError) as error:
        print(f"benchmarks.hierarchy: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
    result = make_result(measured, racks, groups, megabytes << 20, rule, rate, rounds)
    for way in WAYS:
        sent, came = (size_text(round(result[kind][way])) for kind in ("bytes_sent", "bytes_received"))
        print(f"{way:10} {result['seconds'][way]:6.3f} s   a rack's link: {sent} sent, {came} received")
    for name, ratio in result["ratios"].items():
        print(f"flat / hierarchy, {name}: {ratio:.2f}")
    if json_path:
        json_path.write_text(json.dumps([result], indent=1) + "\n")


def measure(links: Links, groups: int, nbytes: int, rule: str, rounds: int) -> dict[str, list[dict[str, float]]]:
    """Return, for each way and round, the seconds of an exchange and the mean bytes that a rack sent and received."""
    measured: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    with ExitStack() as stack:
        places = serve(stack, links, groups)
        started = []
        for rack, address in enumerate(links.addresses):
            for group in range(groups):
                which = rack * groups + group, links.nodes * groups, group, groups
                told = Told(*which, nbytes, rule, *places[rack])
                started.append(stack.enter_context(a_group(links.namespace(address), told)))
        for one in started:
            answer(one, "ready")
        for way in [*WAYS, *(WAYS * rounds)]:  # the first exchange of each way is not counted
            before = crossed(links)
            for one in started:
                say(one, way)
            seconds = max(float(answer(one, "took")) for one in started)
            after = settled(links)
            sent, received = ((there - here) / links.nodes for here, there in zip(before, after, strict=True))
            measured[way].append({"seconds": seconds, "bytes_sent": sent, "bytes_received": received})
    return {way: taken[1:] for way, taken in measured.items()}


def make_result(
    measured: Mapping[str, list[dict[str, float]]],
    racks: int,
    groups: int,
    nbytes: int,
    rule: str,
    rate: str,
    rounds: int,
) -> Result:
    """Return medians, and the ratios of the flat way to the hierarchy."""
    kinds = ("seconds", "bytes_sent", "bytes_received")
    medians = {kind: {way: median(one[kind] for one in measured[way]) for way in WAYS} for kind in kinds}
    ratios = {kind: medians[kind]["flat"] / medians[kind]["hierarchy"] for kind in kinds}
    shape = {"racks": racks, "groups_per_rack": groups, "bytes": nbytes, "rule": rule}
    shape |= {"link_rate": rate, "rounds": rounds}
    return {"case": "hierarchy"} | shape | medians | {"ratios": ratios, "hardware": describe_hardware()}


def serve(stack: ExitStack, links: Links, groups: int) -> list[tuple[str, str]]:
    """Start the servers. Return, for each rack of `groups` groups, the address of the flat server and of its own."""
    flat = stack.enter_context(server(links, LAUNCHER, Settings(), groups * links.nodes))
    parent = stack.enter_context(server(links, LAUNCHER, Settings(), links.nodes))
    told = Settings(parents=(parent.address,), racks=links.nodes)
    own = [
        stack.enter_context(server(links, address, msgspec.structs.replace(told, rack_index=rack), groups))
        for rack, address in enumerate(links.addresses)
    ]
    return [(flat.address, one.address) for one in own]


def server(links: Links, address: str, settings: Settings, groups: int) -> ServerProcess:
    """Return a server that ends when `groups` groups have left."""
    # In a process namespace of its own, no other server finds its memory: all bytes go over the links, as between
    # hosts.
    apart = ["unshare", "--pid", "--fork", "--kill-child"]
    command = [*inside(links.namespace(address)), *apart, sys.executable, "-m", "hybridps", "serve"]
    command += ["--bind", f"tcp://{address}:*", "--insecure", "--stop-after-groups", str(groups)]
    return ServerProcess(settings, command=command)


@contextmanager
def a_group(namespace: str, told: Told) -> Iterator[subprocess.Popen[str]]:
    """Start a process that is one group. It leaves when its input ends, and ends with this process in any case."""
    command = [*inside(namespace), sys.executable, "-m", "benchmarks.hierarchy_group"]
    process = subprocess.Popen(
        [*command, msgspec.json.encode(told).decode()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=partial(die_with_parent, signal.SIGTERM, os.getpid()),
    )
    try:
        yield process
    finally:
        process.stdin.close()  # type: ignore[union-attr]
        end_within(process, END_SECONDS)


def inside(namespace: str) -> list[str]:
    """Return the words that make a command run in a namespace."""
    return [shutil.which("ip") or "ip", "netns", "exec", namespace]


def say(process: subprocess.Popen[str], what: str) -> None:
    process.stdin.write(f"{what}\n")  # type: ignore[union-attr]
    process.stdin.flush()  # type: ignore[union-attr]


def answer(process: subprocess.Popen[str], expected: str) -> str:
    """Return the rest of the next line, which must begin with `expected`. Raises RuntimeError."""
    word, _, rest = process.stdout.readline().strip().partition(" ")  # type: ignore[union-attr]
    if word != expected:
        raise RuntimeError(f"a group said {word!r} instead of {expected!r}: its reason is on standard error")
    return rest


def crossed(links: Links) -> tuple[int, int]:
    """Return the bytes that all racks together have sent and received over their links, including headers."""
    nodes = [links.namespace(address) for address in links.addresses]
    return sum(counter(node, "tx") for node in nodes), sum(counter(node, "rx") for node in nodes)


def settled(links: Links) -> tuple[int, int]:
    """Return what `crossed` does once a link is quiet: a rack may exchange with its parents after its groups."""
    end, now = time.monotonic() + MOST_SECONDS, crossed(links)
    while time.monotonic() < end:
        time.sleep(QUIET_SECONDS)
        before, now = now, crossed(links)
        if sum(now) - sum(before) < QUIET_BYTES:
            break
    return now


def counter(namespace: str, direction: str) -> int:
    path = f"/sys/class/net/{INTERFACE}/statistics/{direction}_bytes"
    done = subprocess.run([*inside(namespace), "cat", path], capture_output=True, text=True, check=True, timeout=30)
    return int(done.stdout)


if __name__ == "__main__":
    end_when_signalled()
    app()
