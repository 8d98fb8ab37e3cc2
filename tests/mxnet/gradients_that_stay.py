"""Programs that sum a gradient in place in some calls, and keep it in others. Run by test_gradients_that_stay.py.

Words: programs. All workers have the same gradients.
"""

import os
import sys

import mxnet as mx
import numpy as np
from mxnet import autograd, nd

from hybridps.config import world_size

workers = world_size()


class Weight:
    """A weight of a store whose gradient is another one in each step."""

    def __init__(self, store: mx.kv.KVStore, key: str) -> None:
        self.store = store
        self.key = key
        self.array = nd.ones((4,))
        self.array.attach_grad()
        self.store.broadcast(key, self.array, out=self.array)
        self.gradient = self.array.grad
        self.out = nd.zeros((4,))
        self.step = 0

    def backward(self) -> np.ndarray:
        """Compute the gradient, and return it."""
        self.step += 1
        with autograd.record():
            loss = (self.array * self.step).sum()
        loss.backward()
        return np.full(4, self.step, "f4")

    def sum_in_place(self) -> None:
        expected = self.backward()
        self.store.pushpull(self.key, self.gradient)
        np.testing.assert_array_equal(self.gradient.asnumpy(), workers * expected)

    def sum_to_out(self) -> None:
        expected = self.backward()
        self.store.pushpull(self.key, self.gradient, out=self.out)
        np.testing.assert_array_equal(self.out.asnumpy(), workers * expected)
        np.testing.assert_array_equal(self.gradient.asnumpy(), expected, "the gradient stays")

    def push(self) -> None:
        expected = self.backward()
        self.store.push(self.key, self.gradient)
        self.store.pull(self.key, out=self.out)
        np.testing.assert_array_equal(self.out.asnumpy(), workers * expected)
        np.testing.assert_array_equal(self.gradient.asnumpy(), expected, "the gradient stays")


def pushed(store: mx.kv.KVStore) -> None:
    weight = Weight(store, "pushed")
    for _ in range(2):
        for _ in range(3):
            weight.sum_in_place()
        weight.push()


def summed_elsewhere(store: mx.kv.KVStore) -> None:
    weight = Weight(store, "summed elsewhere")
    for _ in range(2):
        for _ in range(3):
            weight.sum_in_place()
        weight.sum_to_out()


def both(store: mx.kv.KVStore) -> None:
    """Both orders of the two keys: the first of a step must not decide for the other."""
    weights = [Weight(store, f"both {number}") for number in range(3)]
    for _ in range(6):
        weights[0].sum_in_place()
        weights[1].sum_to_out()
        weights[2].sum_in_place()


def both_from_the_other_side(store: mx.kv.KVStore) -> None:
    weights = [Weight(store, f"the other side {number}") for number in range(2)]
    for _ in range(6):
        weights[0].sum_to_out()
        weights[1].sum_in_place()


def updated(store: mx.kv.KVStore) -> None:
    """The store begins to update by gradients that it has summed in place. RMSProp runs in MXNet's own code.

    This is no program for `local`, which then holds the sum in the memory of the gradient, and so updates that.
    """
    weight = Weight(store, "updated")
    for _ in range(4):
        weight.sum_in_place()
    for optimizer in (mx.optimizer.SGD(learning_rate=0.1), mx.optimizer.RMSProp(learning_rate=0.1)):
        store.set_optimizer(optimizer)
        for _ in range(4):
            expected = weight.backward()
            store.pushpull(weight.key, weight.gradient, out=weight.array)
            weight.array.wait_to_read()
            np.testing.assert_array_equal(weight.gradient.asnumpy(), expected, "the gradient stays")


for name in sys.argv[1:]:
    globals()[name](mx.kv.create(os.environ["STORE"]))
    print(f"{name} is right", flush=True)
