"""Nodes of a cluster on one host: network namespaces on a switch, each behind a link of limited rate.

Linux, root, `ip` and `tc`. Each node has one network interface, `link0`, and a host name of its own. Its link
is limited in both directions (a token bucket at each end), like a full-duplex cable. mpirun has a namespace on
the same switch, without a limit.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

INTERFACE = "link0"
SUBNET = "10.77.0.0/24"
LAUNCHER = "10.77.0.1"
"""The address of mpirun's namespace; the nodes have those that follow."""

MOST_NODES = 250

_UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}


class LinksError(RuntimeError):
    """This host cannot make limited links; the message says why."""


@dataclass(frozen=True)
class Links:
    """So many nodes with links of so many bits per second; `prefix` begins the names of the namespaces."""

    prefix: str
    nodes: int
    rate: str

    @property
    def addresses(self) -> tuple[str, ...]:
        return tuple(f"10.77.0.{number + 2}" for number in range(self.nodes))

    @property
    def switch(self) -> str:
        return f"{self.prefix}-switch"

    @property
    def namespaces(self) -> tuple[str, ...]:
        return (self.switch, *map(self.namespace, (LAUNCHER, *self.addresses)))

    def namespace(self, address: str) -> str:
        return f"{self.prefix}-{address}"

    @property
    def launcher(self) -> list[str]:
        """The words before a command that shall run beside the nodes."""
        return self.inside(LAUNCHER)

    def inside(self, address: str) -> list[str]:
        """The words before a command that shall run on the node with this address."""
        return ["ip", "netns", "exec", self.namespace(address)]

    def agent(self, folder: Path) -> Path:
        """A script that starts a command on a node, as Open MPI would with ssh: `agent ADDRESS COMMAND...`."""
        path = folder / "agent"
        path.write_text(
            "#!/bin/sh\n"
            "address=$1\n"
            "shift\n"
            f'exec ip netns exec "{self.prefix}-$address" unshare --uts '
            'sh -c \'hostname "node${0##*.}"; exec sh -c "$*"\' "$address" "$@"\n'
        )
        path.chmod(0o700)
        return path

    def variables(self, folder: Path) -> dict[str, str]:
        """What Open MPI needs to know: the agent, and that the nodes reach each other over TCP."""
        return {
            "PRTE_MCA_plm_ssh_agent": str(self.agent(folder)),
            "OMPI_MCA_pml": "ob1",
            "OMPI_MCA_btl": "self,sm,tcp",
            "OMPI_MCA_btl_tcp_if_include": SUBNET,
        }


def bits_per_second(rate: str) -> float:
    """From `1gbit`, `100mbit`, `2.5gbit`. Raises ValueError.

    >>> bits_per_second("2.5gbit")
    2500000000.0
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(kbit|mbit|gbit)", rate.lower())
    if not found or not float(found[1]):
        raise ValueError(f"{rate!r} is no rate: write 1gbit, 100mbit or 500kbit")
    return float(found[1]) * _UNITS[found[2]]


def setup_commands(links: Links) -> list[str]:
    """The commands that make the namespaces, in order."""
    commands = [f"ip netns add {name}" for name in links.namespaces]
    commands += [
        f"ip -n {links.switch} link add switch type bridge",
        f"ip -n {links.switch} link set switch up",
    ]
    for port, address in enumerate((LAUNCHER, *links.addresses)):
        name = links.namespace(address)
        commands += [
            f"ip -n {name} link set lo up",
            f"ip -n {name} link add {INTERFACE} type veth peer name port{port} netns {links.switch}",
            f"ip -n {name} address add {address}/24 dev {INTERFACE}",
            f"ip -n {name} link set {INTERFACE} up",
            f"ip -n {links.switch} link set port{port} master switch up",
        ]
        if address != LAUNCHER:
            limit = f"root tbf rate {links.rate} burst 256kb latency 50ms"
            commands += [
                f"tc -n {name} qdisc add dev {INTERFACE} {limit}",
                f"tc -n {links.switch} qdisc add dev port{port} {limit}",
            ]
    return commands


@contextmanager
def limited_links(nodes: int, rate: str) -> Iterator[Links]:
    """Make the nodes, and remove them and whatever runs in them at the end. Raises LinksError."""
    links = Links(f"hybridps-{os.getpid()}", nodes, rate)
    _require(nodes)
    try:
        for command in setup_commands(links):
            _run(command.split())
        yield links
    finally:
        _remove(links.namespaces)


def missing() -> str:
    """Why this host cannot make limited links; empty if it can."""
    try:
        with limited_links(1, "1gbit"):
            return ""
    except LinksError as error:
        return str(error)


def _require(nodes: int) -> None:
    if nodes > MOST_NODES:
        raise LinksError(f"{nodes} nodes do not fit into {SUBNET}: at most {MOST_NODES}")
    if os.geteuid() != 0:
        raise LinksError("network namespaces need root")
    for program in ("ip", "tc", "unshare"):
        if shutil.which(program) is None:
            raise LinksError(f"there is no {program}: install iproute2 and util-linux")


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    if done.returncode:
        raise LinksError(f"{' '.join(command)}: {done.stderr.strip()}")


def _remove(namespaces: Sequence[str]) -> None:
    for name in namespaces:
        running = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=False)
        for pid in running.stdout.split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)
