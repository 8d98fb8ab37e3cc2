"""An optimizer of a training framework, which runs in the server process."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated, Any, ClassVar

import msgspec
import numpy as np
from msgspec import Meta

from hybridps.errors import ServerError
from hybridps.ps.clocks import BoundedStale, Clock, FreeRunning
from hybridps.ps.rules.rule import Rule
from hybridps.ps.rules.sgd import Finite, NotNegative

Name = Annotated[str, Meta(pattern="^[A-Za-z0-9_]{1,64}$")]

FRAMEWORKS = "hybridps.optimizers"
"""The group of entry points by which a framework offers its optimizers: `make(name, settings)` returns a function
`update(foreign, gradient, weights)` that updates the weights of one chunk in place, and keeps its state. `make` raises
ValueError for a name or setting that it does not know."""

Plain = bool | int | float | str | None


class Foreign(Rule, frozen=True, tag="foreign", kw_only=True):
    """The optimizer `optimizer` of a framework, with plain settings as JSON; nothing of it is unpickled.

    Its states are the framework's. Each chunk has its own, so that an optimizer that looks at a whole parameter needs
    tables of one key.
    """

    clocks: ClassVar[tuple[type[Clock], ...]] = (FreeRunning, BoundedStale)
    whole_chunks = True
    hidden_states = 4

    framework: Name
    optimizer: Name
    settings: Annotated[str, Meta(max_length=4096)] = "{}"
    rate: NotNegative = 0.0
    rescale: Finite = 1.0
    weight_decay: NotNegative = 0.0
    clip: NotNegative = 0.0

    def load(self) -> Callable[[Any, np.ndarray, np.ndarray], None]:
        """The update of one chunk. Raises ServerError if this server cannot have it."""
        found = _offered(self.framework)
        if found is None:
            raise ServerError(f"this server has no framework {self.framework!r}: install hybridps with it")
        try:
            settings = msgspec.json.decode(self.settings, type=dict[str, Plain])
            return found.load()(self.optimizer, settings)  # type: ignore[no-any-return]
        except (ImportError, ValueError) as error:
            raise ServerError(f"this server cannot have the optimizer {self.optimizer!r}: {error}") from None


@lru_cache(maxsize=16)
def _offered(framework: str) -> EntryPoint | None:
    """What a framework offers. Every chunk asks, and a search reads the files of all packages."""
    return next(iter(entry_points(group=FRAMEWORKS, name=framework)), None)
