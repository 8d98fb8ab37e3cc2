#!/usr/bin/env bash
# Train on the hosts of a file with lines such as `node1 slots=4`. Each host is one group; the server runs
# here, with keys for this run alone. mpirun reaches the hosts over ssh.
#
# usage: launch/hostfile.sh HOSTFILE COMMAND...
#   e.g. launch/hostfile.sh hosts.txt python train.py --epochs 3
#
# SERVERS (default: 1), ALGORITHM (default: elastic) and RUN (a run folder that all hosts see) are taken
# from the environment. On a network that you trust, INSECURE=1 turns encryption off.
set -euo pipefail

if (($# < 2)); then
    sed -n '2,9s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi
hostfile=$1
shift

# `node1 slots=4` and `node1:4` -> 4; `node1` -> 1
sizes=$(sed -E -e 's/#.*//' -e 's/^[[:space:]]*//' -e '/^$/d' "$hostfile" |
    sed -E -e 's/^.*[[:space:]]slots=([0-9]+).*$/\1/' -e 's/^[^[:space:]]*:([0-9]+).*$/\1/' -e '/^[0-9]+$/!s/.*/1/' |
    paste -s -d ,)

options=(--hostfile "$hostfile" --group-sizes "$sizes" --servers "${SERVERS:-1}")
options+=(--algorithm "${ALGORITHM:-elastic}" ${INSECURE:+--insecure})
if [[ -n ${RUN:-} ]]; then
    options+=(--run "$RUN")
fi
exec hybridps run "${options[@]}" -- "$@"
