"""A server's jobs without transport and threads: each task is run as soon as it is returned."""

from __future__ import annotations

import numpy as np

from hybridps.errors import HybridPSError
from hybridps.ps.model import Admitted, Answer, Contribution, Origin, Task
from hybridps.ps.server.tables.jobs import Jobs


def do(task):
    """Run a task as a worker would, and return what follows."""
    try:
        result = task.run()
    except HybridPSError as error:
        result = error
    return task.then(result)


def ran(outcomes):
    """Who is answered and what goes up, in order, all tasks done."""
    answers, left = [], [*outcomes]
    while left:
        outcome = left.pop(0)
        if isinstance(outcome, Task):
            left[:0] = do(outcome)
        else:
            answers.append(outcome)
    return answers


def origin(group, request=0, job="job", epoch=0):
    return Origin(job, group, epoch, request)


def told(outcomes):
    """(group, request, first value of the answer or None) of each answer without an error."""
    return [
        (o.origin.group, o.origin.request, None if o.values is None else float(o.values[0]))
        for o in outcomes
        if isinstance(o, Answer) and o.error is None
    ]


def admitted(outcomes):
    """(group, whether it initialises) of each group that has joined."""
    return [(o.origin.group, o.initialise) for o in outcomes if isinstance(o, Admitted)]


def errors(outcomes):
    return [(o.origin.group, type(o.error)) for o in outcomes if isinstance(o, Answer) and o.error is not None]


class SynchronousJobs(Jobs):
    """Calls return who is answered."""

    def register(self, *arguments, **options):
        answers = ran(super().register(*arguments, **options))
        for answer in answers:
            if isinstance(answer, Answer) and answer.error is not None:
                raise answer.error
        return answers

    def leave(self, *arguments, **options):
        return ran(super().leave(*arguments, **options))

    def drop(self, *arguments, **options):
        return ran(super().drop(*arguments, **options))

    def begin_without_absent(self, *arguments, **options):
        return ran(super().begin_without_absent(*arguments, **options))

    def initialise(self, who, table, chunk, values):
        there = self.table(who, table)
        return ran(there.initialise(who, there.chunk_map.whole(chunk), values))

    def contribute(self, who, table, chunk, values, start=None, stop=None, targets=None):
        """Of a whole chunk, or of elements `start:stop` of the table, which lie in one chunk."""
        there = self.table(who, table)
        whole = there.chunk_map.whole(chunk)
        span = whole if start is None else whole._replace(start=start, stop=stop)
        there.registrations.check_usable(who)
        return ran(there.chunk(chunk).contribute(Contribution(who, span, [values[: span.length]], targets)))

    def contribute_in_place(self, who, table, chunk, values):
        return self.contribute(who, table, chunk, values, targets=[values])

    def pull(self, who, table, chunk):
        there = self.table(who, table)
        there.registrations.check_usable(who)
        return ran([there.chunk(chunk).arrays.pull(who)])


def values(number, length=16, dtype=np.float32):
    return np.full(length, number, dtype)
