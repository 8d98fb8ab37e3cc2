"""Several stores in one process, and who is silent on every rank. gossip_stores.py OUT"""

import sys
import time
from pathlib import Path

import mxnet as mx

first = mx.kv.create("dist_hybridps_gossip")
assert first.num_dead_node(0, 60) == 0
weight = mx.nd.ones((4,))
first.init("small", weight)
assert first.num_dead_node(0, 60) == 0
second = mx.kv.create("dist_hybridps_gosgd")
assert second.type == "dist_hybridps_gosgd_sync"
try:
    mx.kv.create("dist_hybridps_sync")
    said = "nothing"
except Exception as error:
    said = str(error)
Path(sys.argv[1], f"{first.rank}.txt").write_text(said)
first.broadcast("large", mx.nd.ones((20_000_000,)), out=mx.nd.zeros((20_000_000,)))
stores = [first]
for _ in range(30):  # while the first store shares its initial values
    stores.append(mx.kv.create("dist_hybridps_gossip"))
    time.sleep(0.05)
first.barrier()
