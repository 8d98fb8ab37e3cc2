"""An optimizer of a training framework, which runs in the server process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated, Any, ClassVar

import msgspec
import numpy as np
from msgspec import Meta
from msgspec.structs import replace

from hybridps.errors import ServerError
from hybridps.memory import FLOATS
from hybridps.ps.clocks import BoundedStale, Clock, FreeRunning
from hybridps.ps.rules.rule import MOST_STATES, Rule
from hybridps.ps.rules.sgd import Finite, NotNegative

Name = Annotated[str, Meta(pattern="^[A-Za-z0-9_]{1,64}$")]

FRAMEWORKS = "hybridps.optimizers"
"""The group of entry points through which a framework offers its optimizers: `make(name, settings, weights, states)`
returns `update(foreign, gradient)`, with arrays as in `Rule.load`. `make` raises ValueError for an unknown name or
setting, for a wrong number of states, and for weights that the optimizer does not support."""

Plain = bool | int | float | str | None


class Foreign(Rule, frozen=True, tag="foreign", kw_only=True):
    """The optimizer `optimizer` of a framework, with plain settings as JSON. Nothing is unpickled.

    Each chunk has an optimizer of its own, which keeps only the `states`. Numbers that all parameters share come with
    each update. Tables therefore have one key.
    """

    clocks: ClassVar[tuple[type[Clock], ...]] = (FreeRunning, BoundedStale)
    dtypes: ClassVar[tuple[str, ...]] = FLOATS
    whole_chunks = True

    framework: Name
    optimizer: Name
    settings: Annotated[str, Meta(max_length=4096)] = "{}"
    states: Annotated[int, Meta(ge=0, le=MOST_STATES)] = 0  # type: ignore[misc]
    """The number of states that the optimizer makes for a parameter."""
    whole_keys: bool = False  # type: ignore[misc]
    """Whether the optimizer needs all elements of a parameter together."""
    rate: NotNegative = 0.0
    rescale: Finite = 1.0
    weight_decay: NotNegative = 0.0
    clip: NotNegative = 0.0
    scale: Finite = 1.0
    """The gradient is multiplied by this before the optimizer sees it, because some optimizers read it without their
    own `rescale`."""
    update: Annotated[int, Meta(ge=0, le=1 << 53)] = 0
    """The number of updates of the parameter, including this one. 0: the rounds of a chunk are counted."""
    shared: Finite = 0.0
    """A number that all parameters share and each update changes: its value before this update."""
    parameter: Annotated[str, Meta(max_length=64)] = ""
    """The end of the parameter's name."""

    def load(self, weights: np.ndarray, states: Sequence[np.ndarray]) -> Callable[[Any, int, np.ndarray], None]:
        """Make the optimizer, as `Rule.load`. Raises ServerError if this server does not have it."""
        found = _offered(self.framework)
        if found is None:
            raise ServerError(f"this server has no framework {self.framework!r}: install hybridps with it")
        try:
            settings = msgspec.json.decode(self.settings, type=dict[str, Plain])
            update = found.load()(self.optimizer, settings, weights, states)
        except (ImportError, ValueError, AssertionError) as error:
            raise ServerError(f"this server cannot use the optimizer {self.optimizer!r}: {error}") from None
        return lambda rule, step, gradient: update(rule if rule.update else replace(rule, update=step), gradient)


@lru_cache(maxsize=16)
def _offered(framework: str) -> EntryPoint | None:
    """Return what a framework offers. It is cached: every chunk asks, and a search reads the files of all packages."""
    return next(iter(entry_points(group=FRAMEWORKS, name=framework)), None)
