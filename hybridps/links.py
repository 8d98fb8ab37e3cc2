"""The nodes of a cluster on one host: network namespaces on a switch, each behind a link of limited rate.

    with limited_links(2, "100mbit") as links:
        subprocess.run([*links.inside(links.addresses[0]), "python", "train.py"])

This needs Linux, root, `ip` and `tc`. Each node has one network interface, `link0`, and a host name of its own. Its
link is limited in both directions (a token bucket at each end), like a full-duplex cable. mpirun has a namespace on the
same switch, without a limit. A keeper process removes everything, even if this process is killed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from hybridps.errors import ConfigError

INTERFACE = "link0"
SUBNET = "10.77.0.0/24"
LAUNCHER = "10.77.0.1"
"""The address of mpirun's namespace. The nodes have the addresses that follow."""

MOST_NODES = 250
_PREFIX = "hybridps-"

_BURST_SECONDS = 2e-3
_LEAST_BURST_BYTES = 64 << 10  # the largest packet that the kernel hands over
_KILL_SECONDS = 10.0

_UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}


class LinksError(ConfigError):
    """This host cannot make limited links. The message says why."""


@dataclass(frozen=True)
class Links:
    """Nodes with links of this rate, such as `100mbit`. `prefix` begins the names of the namespaces."""

    prefix: str
    nodes: int
    rate: str
    folder: str = ""
    """A folder for temporary files of programs on the nodes. It is removed together with the namespaces."""

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
        """The words to put before a command that runs beside the nodes."""
        return self.inside(LAUNCHER)

    def inside(self, address: str) -> list[str]:
        """Return the words to put before a command that runs on the node with this address."""
        return [_program("ip"), "netns", "exec", self.namespace(address)]

    def nbytes(self) -> int:
        """Return the bytes that the nodes, and programs beside them, have sent to each other so far, including headers.

        Raises LinksError if this version of `ip` does not report them.
        """
        done = _ip("-n", self.switch, "-json", "-statistics", "link", "show")
        try:
            ports = [port for port in json.loads(done.stdout) if port["ifname"].startswith("port")]
            return sum(port["stats64"]["rx"]["bytes"] for port in ports)
        except (ValueError, LookupError, TypeError):
            raise LinksError(f"ip does not report the bytes of the links: {done.stderr.strip() or done.args}") from None

    def agent(self, folder: Path) -> Path:
        """Write a script that starts a command on a node, as Open MPI would with ssh: `agent ADDRESS COMMAND...`."""
        path = folder / "agent"
        path.write_text(
            "#!/bin/sh\n"
            "address=$1\n"
            "shift\n"
            f'exec {_program("ip")} netns exec "{self.prefix}-$address" unshare --uts '
            'sh -c \'hostname "node${0##*.}"; exec sh -c "$*"\' "$address" "$@"\n'
        )
        path.chmod(0o700)
        return path

    def variables(self, folder: Path) -> dict[str, str]:
        """Return the variables that Open MPI needs: the agent, and that the nodes reach each other over TCP."""
        return {
            "PRTE_MCA_plm_ssh_agent": str(self.agent(folder)),
            "OMPI_MCA_pml": "ob1",
            "OMPI_MCA_btl": "self,sm,tcp",
            "OMPI_MCA_btl_tcp_if_include": SUBNET,
        }


def bits_per_second(rate: str) -> float:
    """Return the bits per second of a rate such as `1gbit`, `100mbit` or `2.5gbit`. Raises ValueError.

    >>> bits_per_second("2.5gbit")
    2500000000.0
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(kbit|mbit|gbit)", rate.lower())
    if not found or not float(found[1]):
        raise ValueError(f"{rate!r} is not a rate: write 1gbit, 100mbit or 500kbit")
    return float(found[1]) * _UNITS[found[2]]


def burst_bytes(rate: str) -> int:
    """Return the bytes that a link sends before it is limited: those of two milliseconds, and at least 64 KiB.

    >>> burst_bytes("1gbit"), burst_bytes("10mbit")
    (250000, 65536)
    """
    return max(_LEAST_BURST_BYTES, round(bits_per_second(rate) * _BURST_SECONDS / 8))


def setup_commands(links: Links) -> list[str]:
    """Return the commands that make the namespaces, in order."""
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
            limit = f"root tbf rate {links.rate} burst {burst_bytes(links.rate)}b latency 50ms"
            commands += [
                f"tc -n {name} qdisc add dev {INTERFACE} {limit}",
                f"tc -n {links.switch} qdisc add dev port{port} {limit}",
            ]
    return commands


@contextmanager
def limited_links(nodes: int, rate: str) -> Iterator[Links]:
    """Make the nodes. At the end, remove them and the processes in them, however this process ends.

    Raises LinksError, with the reason, if this is impossible here.
    """
    links = Links(f"{_PREFIX}{os.getpid()}", nodes, rate)
    _require(nodes, rate)
    _remove_left_behind()
    with _keeping(links.prefix) as folder:
        for command in setup_commands(links):
            _run(command.split())
        yield replace(links, folder=folder)


def missing() -> str:
    """Return why this host cannot make limited links; empty if it can."""
    try:
        with limited_links(1, "1gbit"):
            return ""
    except LinksError as error:
        return str(error)


def remove(prefix: str) -> None:
    """Kill the processes in the namespaces whose names begin with `prefix-`, and remove these namespaces."""
    for name in _names():
        if name.startswith(f"{prefix}-"):
            _kill_inside(name)
            _ip("netns", "delete", name)


def keep(prefix: str) -> None:
    """Run the keeper: make a folder and print it; at the end of standard input, remove folder and namespaces."""
    with TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True) as folder:
        print(folder, flush=True)
        sys.stdin.read()
        remove(prefix)


def _kill_inside(name: str) -> None:
    """Kill until no process is left, because a process may start another one meanwhile."""
    end = time.monotonic() + _KILL_SECONDS
    while (pids := _ip("netns", "pids", name).stdout.split()) and time.monotonic() < end:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        time.sleep(0.01)


@contextmanager
def _keeping(prefix: str) -> Iterator[str]:
    """Run the keeper. It ends, and removes everything, when this process closes its pipe or dies. Yields its folder.

    Raises LinksError if it does not start.
    """
    top = str(Path(__file__).parents[1])
    # An empty or relative path could contain modules of other users, which root would run.
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if os.path.isabs(path)]
    keeper = subprocess.Popen(
        [sys.executable, "-P", "-c", f"from hybridps.links import keep; keep({prefix!r})"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C on the terminal does not reach it
        env=os.environ | {"PYTHONPATH": os.pathsep.join([top, *paths])},
    )
    try:
        folder = keeper.stdout.readline().strip() if keeper.stdout else ""
        if not folder:
            raise LinksError("the process that removes limited links at the end could not be started: see above")
        yield folder
    finally:
        keeper.communicate()
        if keeper.returncode:
            remove(prefix)


def _remove_left_behind() -> None:
    """Remove the namespaces of processes that have ended together with their keepers."""
    prefixes = {name.rpartition("-")[0] for name in _names() if name.startswith(_PREFIX)}
    for prefix in prefixes:
        pid = prefix.removeprefix(_PREFIX)
        if pid.isdigit() and not Path("/proc", pid).exists():
            remove(prefix)


def _require(nodes: int, rate: str) -> None:
    """Raise LinksError if these nodes are impossible on this host."""
    try:
        bits_per_second(rate)
    except ValueError as error:
        raise LinksError(str(error)) from None
    if nodes > MOST_NODES:
        raise LinksError(f"{nodes} nodes do not fit into {SUBNET}: at most {MOST_NODES}")
    if os.geteuid() != 0:
        raise LinksError("limited links need network namespaces, which only root can make: use sudo, or no limit")
    for program in ("ip", "tc", "unshare"):
        if not os.path.isabs(_program(program)):
            raise LinksError(f"limited links need {program}, which is not here: install iproute2 and util-linux")


def _run(command: Sequence[str]) -> None:
    words = [_program(command[0]), *command[1:]]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=30)
    if done.returncode:
        reason = done.stderr.strip() or f"exit status {done.returncode}"
        hint = ""
        if "not permitted" in reason or "denied" in reason:
            hint = "; this needs the capabilities CAP_NET_ADMIN and CAP_SYS_ADMIN, as docker run --privileged gives"
        raise LinksError(f"{' '.join(command)}: {reason}{hint}")


def _names() -> list[str]:
    """Return the names of all network namespaces of this host."""
    return [line.split()[0] for line in _ip("netns", "list").stdout.splitlines() if line.strip()]


def _ip(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([_program("ip"), *words], capture_output=True, text=True, check=False)


def _program(name: str) -> str:
    """Return where a program lies, also if only root's PATH has its folder; its name if it is nowhere."""
    return shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin") or name
