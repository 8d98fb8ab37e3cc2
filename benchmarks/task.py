"""The task of the ranks, and their answer, as JSON in a folder that all of them see."""

from __future__ import annotations

from pathlib import Path

import msgspec

from benchmarks.cases import Case

PEERS = ("gloo", "horovod", "intel_mpi")
WIRES = ("float16",)
"""The dtypes that hybridps may send between nodes instead of float32."""

TASK_FILE = "task.json"
ANSWER_FILE = "answer.json"


class Task(msgspec.Struct, frozen=True):
    """One run of the benchmark, the same for all ranks."""

    folder: str
    """The folder of this file and of the answer, where ranks may also meet."""
    cases: tuple[Case, ...]
    vectors: int
    node_of_rank: tuple[int, ...]
    rounds: int
    peers: tuple[str, ...]
    wire: str
    """The dtype that hybridps sends between nodes, or empty."""
    interface: str
    """The network interface through which the ranks reach each other."""
    intel_mpi: str = ""
    """The prefix of an environment that has Intel MPI, or empty."""

    def write(self) -> Path:
        path = Path(self.folder) / TASK_FILE
        path.write_bytes(msgspec.json.encode(self))
        return path

    @staticmethod
    def read(path: Path) -> Task:
        return msgspec.json.decode(path.read_bytes(), type=Task)


class Answer(msgspec.Struct):
    """What rank 0 writes at the end."""

    seconds: list[dict[str, list[float]]]
    """For each case and each contender, the seconds of each round."""
    absent: dict[str, str]
    """The peers that were not measured, with the reasons."""
    versions: dict[str, str]

    def write(self, folder: str) -> None:
        (Path(folder) / ANSWER_FILE).write_bytes(msgspec.json.encode(self))

    @staticmethod
    def read(folder: str) -> Answer:
        return msgspec.json.decode((Path(folder) / ANSWER_FILE).read_bytes(), type=Answer)
