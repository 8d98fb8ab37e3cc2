"""The steps of a program, recognised by the keys that it pushes. MXNet does not say where a step begins."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mxnet.ndarray import NDArray

from hybridps.kvstore.arrays import same_arrays

Arrays = Sequence[NDArray]


class ProgramSteps:
    """What a program pushes in the step under way, and did in the one before."""

    def __init__(self) -> None:
        self.number = -1
        """The number of the step under way: 0, 1, ...; -1 before the first one."""
        self.pushed: dict[str, Arrays] = {}
        """What was pushed in this step so far."""
        self._before: dict[str, Arrays] = {}
        """What was pushed in the previous step."""
        self._places: dict[str, int] = {}
        """The position of each key in a step, from the second step on."""

    @property
    def has_all(self) -> bool:
        """Whether this step has all keys of the previous one."""
        return self._before.keys() <= self.pushed.keys()

    def is_first(self, name: str) -> bool:
        """Return whether a step begins with this key.

        A step begins if the key was already pushed in this one. It also begins if the key belongs before the first key
        of this step, which has left it out, as with a frozen parameter, and all later keys have been pushed.
        """
        if self.number < 0 or name in self.pushed:
            return True
        place = self._places.get(next(iter(self.pushed), name), 0)
        if self._places.get(name, place) >= place:
            return False
        return all(other in self.pushed for other in self._before if self._places.get(other, 0) > place)

    def begin(self, known: Iterable[str]) -> dict[str, Arrays]:
        """Begin a step. `known`: all keys, in the order in which the program has named them.

        When the third step begins, returns the arrays that were pushed in both others. Arrays of a single step, such as
        `weight.grad`, which is a new object each time, may be gone before the next one.
        """
        self.number += 1
        if self.number == 1:
            first, names = list(self.pushed), list(known)
            is_known = first == [name for name in names if name in self.pushed]
            self._places = {name: place for place, name in enumerate(names if is_known else first)}
        pushed = self.pushed if self.number == 2 else {}
        came = {name: each for name, each in pushed.items() if same_arrays(each, self._before.get(name, ()))}
        self._before, self.pushed = self.pushed, {}
        return came
