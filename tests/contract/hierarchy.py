"""Racks of servers with parents, in threads of this process."""

from __future__ import annotations

from contextlib import ExitStack

import msgspec
from in_thread import in_thread

from hybridps.config import Settings
from hybridps.config.racks import place_in_rack
from hybridps.ps.client import Client
from hybridps.ps.server import Server
from hybridps.ps.server.upstream import Parents

SETTINGS = Settings(chunk_bytes=1024, connect_seconds=5.0, deadline_seconds=10.0, lost_seconds=5.0)


class Hierarchy:
    """So many racks with so many servers each, under so many parents; all is closed in the end."""

    def __init__(self, racks=2, servers=1, parents=1, settings=SETTINGS, **options):
        self.stack = ExitStack()
        self.settings, self.racks = settings, racks
        self.parents = [self.serve(**options) for _ in range(parents)]
        self.servers = self.rack_servers(self.parents, racks, servers, **options)

    def rack_servers(self, parents, racks, servers=1, **options):
        """Rack servers under those parents, rack by rack."""
        return [self.rack_server(parents, rack, racks, **options) for rack in range(racks) for _ in range(servers)]

    def rack_server(self, parents, rack, racks, **options):
        addresses = tuple(parent.address for parent in parents)
        return self.serve(parents=Parents(addresses, rack, racks, self.settings), **options)

    def serve(self, **options):
        server = Server(**{"threads": 2, "lost_seconds": self.settings.lost_seconds} | options)
        return self.stack.enter_context(in_thread(server))

    def open(self, group=0, groups=1, job="job", client=Client, **changes):
        """A group, at the servers of its rack."""
        place = place_in_rack(group, groups, min(self.racks, groups), [server.address for server in self.servers])
        settings = msgspec.structs.replace(self.settings, **changes)
        return self.enter(client(place.servers, job=job, group=place.group, groups=place.groups, settings=settings))

    def enter(self, store):
        return self.stack.enter_context(store)

    def close(self):
        self.stack.close()
