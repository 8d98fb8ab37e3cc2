"""What scripts ask of MXNet's servers besides keys: commands, a profile, and which nodes are dead.

A job has one `ServersProfile`. A store passes calls on to `command` and `watched_workers`.
"""

from hybridps.kvstore.servers.commands import command
from hybridps.kvstore.servers.nodes import watched_workers
from hybridps.kvstore.servers.profile import ServersProfile
from hybridps.kvstore.servers.profiler_library import StoreHandle

__all__ = ["ServersProfile", "StoreHandle", "command", "watched_workers"]
