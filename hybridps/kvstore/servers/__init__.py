"""What scripts ask MXNet's servers for, beside keys: commands, a profile, and which nodes are dead.

A `ServersProfile` is made for each job; a store hands calls on to `command` and `watched_workers`.
"""

from hybridps.kvstore.servers.commands import command
from hybridps.kvstore.servers.nodes import watched_workers
from hybridps.kvstore.servers.profile import ServersProfile
from hybridps.kvstore.servers.profiler_library import StoreHandle

__all__ = ["ServersProfile", "StoreHandle", "command", "watched_workers"]
