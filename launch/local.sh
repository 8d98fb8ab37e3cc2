#!/usr/bin/env bash
# Train on this machine.
#
# usage: launch/local.sh WORKERS GROUPS COMMAND...
#   e.g. launch/local.sh 4 2 python train.py --epochs 3
#
# ALGORITHM (default: elastic) and RUN (the run folder) are taken from the environment.
set -euo pipefail

if (($# < 3)); then
    sed -n '2,7s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi
workers=$1 groups=$2
shift 2

options=(-n "$workers" --groups "$groups" --algorithm "${ALGORITHM:-elastic}")
if [[ -n ${RUN:-} ]]; then
    options+=(--run "$RUN")
fi
exec hybridps run "${options[@]}" -- "$@"
