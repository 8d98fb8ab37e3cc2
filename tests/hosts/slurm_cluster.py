"""A SLURM cluster of two such hosts: munge and slurmd on both, slurmctld on the first."""

from __future__ import annotations

import contextlib
import secrets
import shutil
from collections.abc import Iterator

from namespaces import Host, two_hosts, wait_for

NEEDED = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "salloc", "scontrol")
CPUS = 8
"""Of each node, as SLURM counts them; there may be fewer."""

CONFIGURATION = """
ClusterName=two
SlurmctldHost={first.name}({first.address})
SlurmUser=root
SlurmdUser=root
StateSaveLocation=/run/slurm/state
SlurmdSpoolDir=/run/slurm/spool
SlurmctldPidFile=/run/slurm/slurmctld.pid
SlurmdPidFile=/run/slurm/slurmd.pid
SlurmctldLogFile=/run/slurm/slurmctld.log
SlurmdLogFile=/run/slurm/slurmd.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
ReturnToService=2
SchedulerParameters=sched_interval=1,batch_sched_delay=0
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""

KEY = secrets.token_hex(64)


def missing() -> str:
    """What this machine lacks for a cluster; empty if nothing."""
    lacking = [program for program in NEEDED if shutil.which(program, path="/usr/sbin:/usr/bin") is None]
    return f"needs {', '.join(lacking)}" if lacking else ""


@contextlib.contextmanager
def slurm(shared: str) -> Iterator[tuple[Host, Host]]:
    """The nodes of a cluster that takes jobs. `shared`: a folder that both see."""
    with two_hosts(shared) as cluster:
        nodes = cluster.hosts
        for node in nodes:
            _start(node, nodes)
        wait_for(lambda: nodes[0].do("sinfo --noheader --format=%T --states=idle --Node").split() == ["idle"] * 2)
        yield nodes


def _start(node: Host, nodes: tuple[Host, Host]) -> None:
    lines = "\n".join(f"NodeName={each.name} NodeAddr={each.address} CPUs={CPUS} State=UNKNOWN" for each in nodes)
    configuration = CONFIGURATION.format(first=nodes[0], nodes=lines)
    node.do(
        f"""
        mkdir -p /run/slurm/state /run/slurm/spool /run/slurm/etc /run/munge
        cat > /run/slurm/etc/slurm.conf <<'END'\n{configuration}\nEND
        mount --bind /run/slurm/etc /etc/slurm
        umask 077; printf %s {KEY} > /run/munge.key; umask 022
        munged --force --key-file=/run/munge.key --socket=/run/munge/munge.socket.2 --pid-file=/run/munge/pid \
            --log-file=/run/munge/log --seed-file=/run/munge/seed
        """
    )
    if node is nodes[0]:
        node.do("slurmctld")
    node.do(f"slurmd -N {node.name}")
