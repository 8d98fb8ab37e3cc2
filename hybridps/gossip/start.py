"""Make the partners of a session's group: over MPI in one world, over ZeroMQ between worlds."""

from __future__ import annotations

from hybridps.errors import ConfigError
from hybridps.gossip.mail import Mail
from hybridps.gossip.partners import Partners
from hybridps.mpi_groups.session import Session
from hybridps.ps.keys import Credentials


def start_partners(session: Session) -> Partners | None:
    """Return the partners of this group on its leader, and None elsewhere. Every worker of the MPI world calls this.

    Raises ConfigError or ServerError, perhaps on some ranks only.
    """
    place, settings = session.place, session.settings
    if settings.group_index is None:
        leaders = session.workers.split(0 if place.is_leader else 1)
        if not place.is_leader:
            leaders.free()
            return None
        from hybridps.mpi_groups.mail import MPIMail
        from hybridps.mpi_groups.mpi import MPIGroup

        assert isinstance(leaders, MPIGroup)
        mail: Mail = MPIMail(leaders)
    elif not place.is_leader:
        return None
    elif len(settings.peers) != session.plan.groups:
        raise ConfigError(
            f"HYBRIDPS_PEERS has {len(settings.peers)} addresses, and the {session.plan.groups} groups gossip in MPI "
            "worlds of their own: start them with `hybridps run --algorithm ...`, or give the address of each"
        )
    else:
        from hybridps.gossip.socket_mail import SocketMail  # loads the server

        mail = SocketMail(settings.peers, place.group, Credentials.of(settings))
    return Partners(mail, settings)
