"""A worker of MXNet's own KVStore, which obeys commands line by line.

python -m benchmarks.mxnet_worker PARENT TYPE RULE SIZES

It ends with the process PARENT that started it. The variables DMLC_* give the address of its scheduler. Commands are
JSON lists on standard input; each is answered with a line of JSON.
"""

from __future__ import annotations

import json
import sys

import mxnet as mx

from benchmarks.exchanges import MOMENTUM, RATE
from hybridps.processes import die_with_parent


class Worker:
    """The keys of a case, pushed and pulled as a Trainer does: the last layer is the least urgent."""

    def __init__(self, kind: str, rule: str, sizes: list[int]) -> None:
        self.store = mx.kv.create(kind)
        self.keys = list(range(len(sizes)))
        self.gradients = [mx.nd.zeros((size,)) for size in sizes]
        self.weights = [mx.nd.zeros((size,)) for size in sizes]
        for key, weight in zip(self.keys, self.weights, strict=True):
            self.store.init(key, weight)
        if rule == "momentum":
            self.store.set_optimizer(mx.optimizer.SGD(learning_rate=RATE, momentum=MOMENTUM, rescale_grad=1.0))
        self.exchange(0)

    def begin(self) -> None:
        """Do nothing: the answer says that the worker is ready."""

    def fill(self, value: float) -> None:
        for gradient in self.gradients:
            gradient[:] = value
        mx.nd.waitall()

    def exchange(self, times: int) -> None:
        for _ in range(times):
            for key, gradient in zip(self.keys, self.gradients, strict=True):
                self.store.push(key, gradient, priority=-key)
            for key, weight in zip(self.keys, self.weights, strict=True):
                self.store.pull(key, weight, priority=-key)
            mx.nd.waitall()

    def seen(self) -> tuple[float, float]:
        least = min(float(weight.min().asscalar()) for weight in self.weights)
        return least, max(float(weight.max().asscalar()) for weight in self.weights)


def main(parent: str, kind: str, rule: str, sizes: str) -> None:
    """Obey commands until standard input ends."""
    die_with_parent(parent=int(parent))  # MXNet waits for its scheduler for ever
    worker = Worker(kind, rule, [int(size) for size in sizes.split(",")])
    for line in sys.stdin:
        command, *arguments = json.loads(line)
        print(json.dumps(getattr(worker, command)(*arguments)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
