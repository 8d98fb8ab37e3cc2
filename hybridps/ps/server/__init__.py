"""The server: `Server` serves in this process, `ServerProcess` starts one as a child. Callers use nothing else."""

from hybridps.ps.process import ServerProcess
from hybridps.ps.server.loop import Server

__all__ = ["Server", "ServerProcess"]
