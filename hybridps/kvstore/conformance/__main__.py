"""`python -m hybridps.kvstore.conformance TYPE [CHECK ...]`: status 1 if the type differs from MXNet's own."""

import sys

import mxnet as mx

from hybridps.kvstore.conformance import differences

lines = differences(lambda: mx.kv.create(sys.argv[1]), sys.argv[2:])
print("\n".join(lines or ["no difference"]), flush=True)
sys.exit(bool(lines))
