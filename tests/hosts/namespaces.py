"""Hosts as Linux namespaces: each has its own network, name, processes, and file system view, and an `sshd`.

What the hosts share is the installed package, as a cluster's file system has it. Root is needed.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from hybridps.processes import die_with_parent

ROOT = Path(__file__).parents[2]
SHARED = tuple(dict.fromkeys(map(os.path.realpath, (ROOT, sys.prefix, sys.base_prefix))))
"""Folders that all hosts see: the package, its virtual environment, and Python."""

OWN = ("/tmp", "/dev/shm", "/root", "/run", "/var/tmp")
"""Folders that each host has for itself, empty at first."""

TRAIN = """
import socket, sys, time
import numpy as np
from hybridps.job import open_job
from hybridps.step import ArrayModel

with open_job() as job, ArrayModel(job.algorithm(), job.session, {"w": np.zeros(8, "float32")}) as model:
    print(f"worker {job.worker} of {job.workers} trains on {socket.gethostname()}", flush=True)
    for step in range(int(sys.argv[1])):
        model.gradients["w"][:] = 1
        model.reduce()
        time.sleep(0.02)  # a step computes
    print(f"worker {job.worker} has {model.gradients['w'][0]:g}", flush=True)
"""
"""A program of each worker: so many steps."""

NEEDED = ("unshare", "nsenter", "ip", "ssh", "ssh-keygen", "/usr/sbin/sshd")
SECONDS = 60

SSHD = """
Port 22
HostKey {home}/.ssh/id_ed25519
AuthorizedKeysFile {home}/.ssh/authorized_keys
PermitRootLogin prohibit-password
PasswordAuthentication no
StrictModes no
UsePAM no
PidFile none
"""


def missing() -> str:
    """What this machine lacks for such hosts; empty if nothing."""
    lacking = [program for program in NEEDED if shutil.which(program) is None]
    if lacking or os.geteuid() != 0:
        return f"needs {', '.join(lacking)}" if lacking else "needs root"
    done = subprocess.run(["unshare", "--net", "--mount", "--uts", "--pid", "--fork", "true"], capture_output=True)
    return "" if done.returncode == 0 else "needs the right to make namespaces"


class Host:
    """A host that lives until it is closed. `address` is the one that other hosts reach it at."""

    def __init__(self, name: str, address: str, shared: Sequence[str]) -> None:
        self.name, self.address = name, address
        self._shared = [folder for folder in shared if folder.startswith(tuple(f"{own}/" for own in OWN))]
        options = ["--net", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
        self._unshare = subprocess.Popen(
            ["unshare", *options, "--propagation", "private", "sh", "-c", self._setup()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=partial(die_with_parent, signal.SIGKILL, os.getpid()),
        )
        assert self._unshare.stdout is not None
        assert self._unshare.stdout.readline() == "ready\n", f"{name} cannot be made"
        children = Path(f"/proc/{self._unshare.pid}/task/{self._unshare.pid}/children").read_text()
        self.pid = int(children.split()[0])
        """Of its first process."""

    def _setup(self) -> str:
        """Gives the host empty folders of its own, but for what is shared in them."""
        lines = ["set -e", f"hostname {self.name}", "ip link set lo up", "mount -t tmpfs stage /mnt"]
        for number, folder in enumerate(self._shared):
            lines += [f"mkdir /mnt/{number}", f"mount --bind {shlex.quote(folder)} /mnt/{number}"]
        lines += [f"mount -t tmpfs own {own}" for own in OWN if os.path.isdir(own)]
        for number, folder in enumerate(self._shared):
            lines += [f"mkdir -p {shlex.quote(folder)}", f"mount --move /mnt/{number} {shlex.quote(folder)}"]
        lines += ["mkdir -p /run/sshd", "chmod 1777 /tmp /dev/shm", "chmod 700 /root", "echo ready", "exec cat"]
        return "\n".join(lines)

    def words(self, command: Sequence[str], **variables: str) -> list[str]:
        """The command line, here, that runs a command there, with few variables, as a login has them."""
        environ = {"HOME": "/root", "USER": "root", "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"} | variables
        assigned = [f"{name}={value}" for name, value in environ.items()]
        # The working folder is looked up anew: it may be under a folder that the host has for itself.
        entered = ["nsenter", f"--target={self.pid}", "--net", "--mount", "--uts", "--pid", f"--wdns={ROOT}"]
        return [*entered, "env", "-i", *assigned, *command]

    def run(self, *command: str, seconds: float = SECONDS, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a command there to its end."""
        words = self.words(command, **variables)
        return subprocess.run(words, capture_output=True, text=True, timeout=seconds, stdin=subprocess.DEVNULL)

    def do(self, script: str) -> str:
        """The output of a shell script, which must succeed."""
        done = self.run("sh", "-ec", script)
        assert done.returncode == 0, f"{self.name}: {script}\n{done.stdout}{done.stderr}"
        return done.stdout

    def processes(self) -> list[str]:
        """The command lines of the processes there, without the daemons of the host and what is asked of it here."""
        # A process may end meanwhile.
        script = "for f in /proc/[0-9]*; do cat $f/cmdline 2>/dev/null | tr '\\0' ' '; echo; done"
        lines = self.do(script).splitlines()
        daemons = ("cat ", "sh -ec", "tr ", "sshd: /usr/sbin/sshd", "munged ", "slurm", ": slurm")
        return [line for line in lines if line and not line.startswith(daemons)]

    def leftovers(self) -> list[str]:
        """What a job has left behind: processes, and files in folders of this host alone."""
        mounted = {folder.split("/")[2] for folder in self._shared if folder.startswith("/tmp/")}
        files = [name for name in self.do("ls -A /tmp /dev/shm /var/tmp").split() if not name.endswith(":")]
        return self.processes() + [name for name in files if name not in mounted]

    def close(self) -> None:
        """End all processes there; its folders and its network go with them."""
        self._unshare.kill()
        self._unshare.communicate()


class Cluster:
    """Two hosts on one network, which may log in to each other by name."""

    def __init__(self, hosts: tuple[Host, Host], switch: Host) -> None:
        self.hosts = hosts
        self._switch = switch
        switch.do("ip link add switch type bridge; ip link set switch up")
        names = "".join(f"{host.address} {host.name}\\n" for host in hosts)
        for host in hosts:
            # Not by `do`: the process id of the host has a meaning only outside of it.
            link = ["ip", "link", "add", host.name, "type", "veth", "peer", "name", "eth0", "netns", str(host.pid)]
            subprocess.run(["nsenter", f"--target={switch.pid}", "--net", *link], check=True, timeout=SECONDS)
            switch.do(f"ip link set {host.name} master switch up")
            host.do(
                f"ip address add {host.address}/24 dev eth0; ip link set eth0 up\n"
                f"printf '127.0.0.1 localhost\\n{names}' > /run/hosts; mount --bind /run/hosts /etc/hosts"
            )
        for host in hosts:
            _serve_ssh(host, hosts)

    def unplug(self, host: Host) -> None:
        """Cut the host off, as when its cable is pulled or its power is gone: nobody hears that it has ended."""
        self._switch.do(f"ip link set {host.name} down")


@contextlib.contextmanager
def two_hosts(shared: str) -> Iterator[Cluster]:
    """A cluster. `shared`: a folder that both hosts see."""
    with contextlib.ExitStack() as stack:
        made = []
        for name, address in (("switch", ""), ("hosta", "10.77.0.1"), ("hostb", "10.77.0.2")):
            made.append(Host(name, address, (*SHARED, shared)))
            stack.callback(made[-1].close)
        yield Cluster((made[1], made[2]), made[0])


def _serve_ssh(host: Host, hosts: Sequence[Host]) -> None:
    """Start sshd. All hosts have one pair of keys, for hosts and users, and know each other's."""
    home = "/root"
    if host is hosts[0]:
        host.do(f"mkdir -m 700 {home}/.ssh; ssh-keygen -q -t ed25519 -N '' -f {home}/.ssh/id_ed25519")
    pair = {name: hosts[0].do(f"cat {home}/.ssh/{name}") for name in ("id_ed25519", "id_ed25519.pub")}
    known = "".join(f"{each.name},{each.address} {pair['id_ed25519.pub']}" for each in hosts)
    files = {**pair, "authorized_keys": pair["id_ed25519.pub"], "known_hosts": known, "sshd": SSHD.format(home=home)}
    host.do(f"mkdir -p -m 700 {home}/.ssh")
    for name, text in files.items():
        host.do(f"umask 077; printf %s {shlex.quote(text)} > {home}/.ssh/{name}")
    host.do(f"/usr/sbin/sshd -f {home}/.ssh/sshd")


class Program:
    """A command that runs on a host, and all that it prints, line by line."""

    def __init__(self, host: Host, *command: str, **variables: str) -> None:
        self._host = host
        noted = ("sh", "-c", 'echo $$ > /run/program; exec "$@"', "sh", *command)
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        self.process = subprocess.Popen(host.words(noted, **variables), text=True, **pipes)  # type: ignore[call-overload]
        self.lines: list[str] = []
        self._reader = threading.Thread(target=lambda: self.lines.extend(self._read()), daemon=True)
        self._reader.start()

    def _read(self) -> Iterator[str]:
        for line in self.process.stdout:
            yield line.rstrip("\n")

    def has(self, text: str, times: int = 1) -> bool:
        return sum(text in line for line in self.lines) >= times

    def send(self, name: str) -> None:
        """Send it a signal."""
        self._host.do(f"kill -{name} $(cat /run/program)")

    def end(self, seconds: float = SECONDS) -> int:
        """Its exit status. Killed after so many seconds, which fails."""
        try:
            return self.process.wait(seconds)
        finally:
            self.process.kill()
            self._reader.join(SECONDS)

    def __str__(self) -> str:
        return "\n".join(self.lines)


def wait_for(condition: Callable[[], object], seconds: float = SECONDS, about: object = "") -> None:
    """Until a condition holds. Fails after so many seconds, and then prints what it is about."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds:g} s; {about}"
        time.sleep(0.05)
