"""Where gradients of a bucket are parted, because something that has not begun lies between them."""

from __future__ import annotations

import pytest

from hybridps.step.inbox import Inbox
from hybridps.step.program_order import ProgramOrder
from hybridps.step.schedule import Item


class Posted(Item):
    has_begun = False

    def __init__(self, title: str, **more: bool) -> None:
        super().__init__(Inbox())
        self.title = title
        for name, value in more.items():
            setattr(self, name, value)


def ordered(*items: Item) -> ProgramOrder:
    order = ProgramOrder()
    for item in items:
        order.append(item)
    return order


@pytest.mark.parametrize(
    ("between", "apart"),
    [({}, True), ({"has_begun": True}, False), ({"done": True}, False), ({"is_local": True}, False)],
    ids=str,
)
def test_only_what_has_not_begun_parts_gradients(between: dict[str, bool], apart: bool) -> None:
    first, other, second, third = Posted("first"), Posted("other", **between), Posted("second"), Posted("third")
    order = ordered(Posted("before"), first, other, second, third, Posted("after"))
    parted = [[first], [second, third]] if apart else [[first, second, third]]
    found = order.series([third, first, second], set())
    assert [sorted(each, key=lambda item: item.place) for each in found] == parted
    (together,) = order.series([third, first, second], {other})
    assert {*together} == {first, second, third}


def test_all_before_a_place_have_begun() -> None:
    items = Posted("done", done=True), Posted("begun", has_begun=True), Posted("local", is_local=True), Posted("last")
    order = ordered(*items, Posted("later"))
    assert order.all_begun(items[-1].place)
    assert not order.all_begun(items[-1].place + 1)


def test_the_first_item_that_is_not_done() -> None:
    first, second = Posted("first"), Posted("second")
    order = ordered(first, second)
    assert order.head() is first
    first.done = True
    assert order.head() is second
    assert [*order.open()] == [second]
    second.done = True
    assert order.head() is None
