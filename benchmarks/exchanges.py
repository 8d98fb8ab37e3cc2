"""The task and the answer of the push and pull benchmark, as JSON in a folder that all processes see."""

from __future__ import annotations

from pathlib import Path

import msgspec

from benchmarks.cases import Case

RULES = ("momentum", "sum")
RATE, MOMENTUM = 0.01, 0.9

OURS = ("hybridps_shm", "hybridps_ipc", "hybridps_tcp")
PEERS = ("mxnet_dist_sync", "mxnet_dist_async")
"""Contenders: `mxnet_` and the type of MXNet's own KVStore."""

CASES = ("resnet50", "one_key", "small_keys")

TASK_FILE = "exchanges.json"
ANSWER_FILE = "exchanges-answer.json"


class Way(msgspec.Struct, frozen=True):
    """A contender: its servers, and how its workers reach them."""

    name: str
    pids: tuple[int, ...]
    """The process ids of the servers, and of MXNet's scheduler, which does next to nothing."""
    addresses: tuple[str, ...] = ()
    """The addresses of hybridps' servers."""
    shared: bool = False
    """Whether the gradients of a worker that is a group of its own are in shared memory."""
    chunk_bytes: int = 0
    environment: dict[str, str] = {}
    """The variables that tell a worker of MXNet's store about its scheduler."""
    case: str = ""
    """The only case that it is for, as ps-lite's servers serve one set of workers, once; empty: all cases."""


class Exchanges(msgspec.Struct, frozen=True):
    """One run of the benchmark, the same for all ranks."""

    folder: str
    cases: tuple[Case, ...]
    workers: int
    groups: int
    ways: tuple[Way, ...]
    rule: str
    rounds: int
    bucket_bytes: int = 0
    """The bytes that are exchanged at a time; 0: all at once."""

    def write(self) -> Path:
        path = Path(self.folder) / TASK_FILE
        path.write_bytes(msgspec.json.encode(self))
        return path

    def done_file(self, case: str) -> Path:
        """Return the path of a file that exists once a case is measured, and its servers are no longer needed."""
        return Path(self.folder) / f"{case}.done"

    @staticmethod
    def read(path: Path) -> Exchanges:
        return msgspec.json.decode(path.read_bytes(), type=Exchanges)


class Measured(msgspec.Struct):
    """What rank 0 writes at the end: for each case and each contender, a number for each round."""

    seconds: list[dict[str, list[float]]]
    server_seconds: list[dict[str, list[float]]]
    """The CPU time of all servers of the contender, and of MXNet's scheduler."""
    versions: dict[str, str]

    def write(self, folder: str) -> None:
        (Path(folder) / ANSWER_FILE).write_bytes(msgspec.json.encode(self))

    @staticmethod
    def read(folder: str) -> Measured:
        return msgspec.json.decode((Path(folder) / ANSWER_FILE).read_bytes(), type=Measured)


def make_cases(names: tuple[str, ...], resnet50: tuple[int, ...]) -> tuple[Case, ...]:
    """Return the cases with these names. The small keys are those of ResNet-50, with at most 1024 elements each."""
    tensors = {
        "resnet50": resnet50,
        "one_key": (4 << 20,),
        "small_keys": tuple(min(size, 1024) for size in resnet50),
    }
    return tuple(Case(name, tensors[name]) for name in names)
