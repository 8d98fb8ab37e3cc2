"""Finding the program's arrays while other threads make objects."""

from __future__ import annotations

import gc
import sys
import threading
import time

import mxnet as mx

from hybridps.kvstore.arrays import instances


def test_all_instances_of_a_class_are_found() -> None:
    plain = mx.nd.zeros((2,))
    sparse = plain.reshape((2, 1)).tostype("row_sparse")
    arrays, sparse_arrays = (
        {id(each) for each in instances(kind)} for kind in (mx.nd.NDArray, mx.nd.sparse.RowSparseNDArray)
    )
    assert {id(plain), id(sparse)} <= arrays
    assert id(sparse) in sparse_arrays
    assert id(plain) not in sparse_arrays


def test_what_another_thread_deletes_meanwhile_is_left_out() -> None:
    """MXNet has freed the memory of such an array, or is freeing it: to use the array's handle ends the process."""
    being_deleted, inspected = threading.Event(), threading.Event()

    class Kind:
        def __del__(self) -> None:
            being_deleted.set()
            inspected.wait(10)

    kept = Kind()
    thread = threading.Thread(target=Kind)
    thread.start()
    assert being_deleted.wait(10)
    found = gc.get_objects()
    assert [id(each) for each in instances(Kind)] == [id(kept)]
    inspected.set()
    thread.join()
    assert len([each for each in found if type(each) is Kind]) == 2, "the garbage collector has hidden it"
    assert [id(each) for each in instances(Kind)] == [id(kept)]


def test_a_tuple_that_another_thread_fills_meanwhile_is_left_alone() -> None:
    """Otherwise CPython ends that thread's work with a SystemError, some times in a second."""
    failed, ended, filled = list[SystemError](), threading.Event(), [0]

    def fill() -> None:
        while not ended.is_set():
            try:
                tuple(number for number in range(20))
            except SystemError as error:
                failed.append(error)
            filled[0] += 1

    thread, usual = threading.Thread(target=fill), sys.getswitchinterval()
    sys.setswitchinterval(5e-4)  # as beside the communication thread
    thread.start()
    began = time.monotonic()
    while time.monotonic() - began < 3:
        instances(mx.nd.NDArray)
    ended.set()
    thread.join()
    sys.setswitchinterval(usual)
    assert filled[0] > 100
    assert not failed
