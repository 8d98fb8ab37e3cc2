"""The server. `Server` runs in this process; `hybridps.processes` starts one as a child. Callers use nothing else."""

from hybridps.ps.server.server import Server

__all__ = ["Server"]
