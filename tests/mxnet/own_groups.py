"""A store whose type says that each worker is a group of its own. own_groups.py OUT"""

import sys
from pathlib import Path

import mxnet as mx

store = mx.kv.create("dist_hybridps_dist-sgd")
Path(sys.argv[1], f"{store.rank}.txt").write_text(f"{store.type} {store._job.session.plan.group_sizes}")
