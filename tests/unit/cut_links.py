"""Servers behind links that can be cut: in a network namespace, with one link to this one for each group."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass

SERVES = "hybridps: serving at "
PORT = 5555
LINKS = 2


def missing():
    """Why this host cannot do that; empty if it can."""
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("tc") is None:
        return "needs root, ip and tc"
    name = f"hybridps-{os.getpid()}-probe"
    if subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode:
        return "this host makes no network namespaces"
    subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)
    return ""


def ip(*words):
    subprocess.run(["ip", *words], check=True, timeout=20)


@dataclass
class CutLinks:
    """Links 0, 1, ... to the namespace `name`."""

    name: str
    net: str

    def address(self, link, port=PORT):
        """Of the server at this port, as it is seen over a link."""
        return f"tcp://{self.net}.{4 * link + 2}:{port}"

    def cut(self, *links):
        """From now on nothing comes through, and nobody is told."""
        for link in links:
            ip("-n", self.name, "link", "set", f"far{link}", "down")

    def heal(self, *links):
        for link in links:
            ip("-n", self.name, "link", "set", f"far{link}", "up")

    def slow(self, link, rate):
        """Limit a link in both directions."""
        limit = ["root", "tbf", "rate", rate, "burst", "16kb", "latency", "400ms"]
        subprocess.run(["tc", "qdisc", "add", "dev", self.near(link), *limit], check=True, timeout=20)
        subprocess.run(["tc", "-n", self.name, "qdisc", "add", "dev", f"far{link}", *limit], check=True, timeout=20)

    def near(self, link):
        return f"hp{os.getpid()}n{link}"


@contextlib.contextmanager
def cut_links():
    number = os.getpid()
    links = CutLinks(f"hybridps-{number}-cut", f"10.{100 + number // 250 % 100}.{number % 250}")
    ip("netns", "add", links.name)
    try:
        ip("-n", links.name, "link", "set", "lo", "up")
        for link in range(LINKS):
            here, there = links.near(link), f"far{link}"
            ip("link", "add", here, "type", "veth", "peer", "name", there, "netns", links.name)
            ip("address", "add", f"{links.net}.{4 * link + 1}/30", "dev", here)
            ip("-n", links.name, "address", "add", f"{links.net}.{4 * link + 2}/30", "dev", there)
            ip("link", "set", here, "up")
            ip("-n", links.name, "link", "set", there, "up")
        yield links
    finally:
        for link in range(LINKS):
            subprocess.run(["ip", "link", "delete", links.near(link)], check=False, timeout=20)
        subprocess.run(["ip", "netns", "delete", links.name], check=False, timeout=20)


@contextlib.contextmanager
def serving(links, port=PORT, **settings):
    """`hybridps serve` behind these links."""
    command = ["ip", "netns", "exec", links.name, sys.executable, "-m", "hybridps", "serve"]
    command += ["--bind", f"tcp://0.0.0.0:{port}", "--insecure"]
    told = {f"HYBRIDPS_{name.upper()}": str(value) for name, value in settings.items()}
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | told)
    try:
        assert server.stdout.readline().startswith(SERVES), server.communicate()
        yield server
    finally:
        server.terminate()
        try:
            server.communicate(timeout=20)
        except ValueError:  # the test has read it all
            server.wait(20)
