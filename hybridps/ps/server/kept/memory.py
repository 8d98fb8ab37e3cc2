"""Memory of a server that outlives its process.

The first page of the file says where the log is. The log has one record for each call that changed anything, in order;
the records determine the state. A call takes effect when the end of the log moves past its record. A shorter log
replaces the log when the offset of the log changes. Each of these is one store of eight aligned bytes. A killed process
has either made it or not, and has made all earlier stores before it.
"""

from __future__ import annotations

import os
import struct
import sys

import numpy as np

from hybridps.errors import ServerError
from hybridps.ps.server.kept.pages import Pages
from hybridps.shared_memory import PAGE

_LIVES, _LOG, _SERVED = range(3)
"""The words of the first page: how many processes have opened the memory; the offset of the log, or 0; and 1 + the
number of the last process that served, or 0."""

_LENGTH, _END = range(2)
"""The first words of a log, in bytes: its capacity and its length."""
_WORDS_BYTES = 16

_PUT, _ARRAY, _FORGET = range(3)
_RECORD = struct.Struct("=Bqq")
"""The beginning of a record: its kind, and the bytes of its key and of its value, which follow."""
_PLACE = struct.Struct("=qq")
"""The value of an array's record: its offset and its bytes."""

_LEAST_LOG_BYTES = 1 << 16


class KeptMemory:
    """Small records and large arrays by name, which the next process finds as this one left them when it was killed.

    The process may be killed at any instruction: the next one sees each call as either made or not made. `create` makes
    the memory. One process at a time uses it, in one thread. Any thread may write to the arrays.
    """

    def __init__(self, descriptor: int) -> None:
        """Begin the next life of the memory behind a descriptor from `create`, which stays open."""
        self._pages = Pages(descriptor)
        self._records: dict[str, bytes] = {}
        self._arrays: dict[str, tuple[int, int]] = {}
        """The offset and bytes of each array."""
        self._head = self._pages.map(0, PAGE).view(np.int64)
        if self._head[_LOG] == 0:
            self._pages.keep_only(())
            self._begin_log(b"", _LEAST_LOG_BYTES)
        else:
            self._read_log()
            log = int(self._head[_LOG]), self._log.nbytes
            self._pages.keep_only([log, *self._arrays.values()])
        self.life = int(self._head[_LIVES])
        """0 for the first process that opened the memory, then 1, 2, ..."""
        self._head[_LIVES] = self.life + 1

    @classmethod
    def create(cls) -> int:
        """Return a descriptor of new memory, which children inherit. It vanishes with the last process that has it."""
        return os.memfd_create("hybridps-kept", 0)

    @staticmethod
    def last_serving_life(descriptor: int) -> int:
        """Return the number of the last process that has called `mark_serving`, or -1, without opening the memory."""
        return int.from_bytes(os.pread(descriptor, 8, 8 * _SERVED), sys.byteorder) - 1

    def mark_serving(self) -> None:
        """Note that this process has begun to serve."""
        self._head[_SERVED] = self.life + 1

    def array(self, name: str, nbytes: int) -> np.ndarray:
        """Return the array of this name (uint8, page-aligned): zeros if it is new, otherwise with its content.

        Only pages that were written take memory. Raises ServerError if there is one of another size, or if no memory is
        left.
        """
        if name not in self._arrays:
            return self._new_array(name, nbytes)
        offset, has = self._arrays[name]
        if has != nbytes:
            raise ServerError(
                f"the kept array {name!r} has {has} bytes, and {nbytes} were asked for: use its size, or forget it"
            )
        return self._pages.map(offset, nbytes)

    def put(self, key: str, value: bytes) -> None:
        """Keep a small record, which replaces an earlier one of this key. Raises ServerError if no memory is left."""
        self._append(_PUT, key, value)

    def get(self, key: str) -> bytes | None:
        """Return the record of this key, if there is one."""
        return self._records.get(key)

    def values(self, prefix: str) -> list[bytes]:
        """Return the records whose keys begin with `prefix`, in the order in which they were last put."""
        return [value for key, value in self._records.items() if key.startswith(prefix)]

    def keys(self, prefix: str) -> list[str]:
        """Return the keys of records that begin with `prefix`, in the order in which they were last put."""
        return [key for key in self._records if key.startswith(prefix)]

    def forget(self, prefix: str) -> None:
        """Drop all records and arrays whose names begin with `prefix`. These arrays must not be used any more."""
        places = [place for name, place in self._arrays.items() if name.startswith(prefix)]
        self._append(_FORGET, prefix, b"")
        for place in places:
            self._pages.give_back(*place)

    def close(self) -> None:
        """Release the memory, except for arrays in use; the descriptor stays open. This is the last call."""
        self._head = self._words = np.zeros(0, np.int64)
        self._log = np.zeros(0, np.uint8)

    def _new_array(self, name: str, nbytes: int) -> np.ndarray:
        offset = self._pages.take(nbytes)
        try:
            array = self._pages.map(offset, nbytes)
            self._append(_ARRAY, name, _PLACE.pack(offset, nbytes))
        except ServerError:
            self._pages.give_back(offset, nbytes)
            raise
        return array

    def _append(self, kind: int, key: str, value: bytes) -> None:
        """Make the change that a record describes."""
        record = _packed(kind, key, value)
        if int(self._words[_END]) + len(record) > self._log.nbytes:
            self._shorten_log(len(record))
        end = int(self._words[_END])
        self._log.data[end : end + len(record)] = record
        self._words[_END] = end + len(record)  # the change takes effect here
        self._apply(kind, key, value)

    def _apply(self, kind: int, key: str, value: bytes) -> None:
        """Apply a record of the log."""
        if kind == _PUT:
            self._records.pop(key, None)  # moves it to the end of the order
            self._records[key] = value
        elif kind == _ARRAY:
            self._arrays[key] = _PLACE.unpack(value)
        else:
            self._records = {name: record for name, record in self._records.items() if not name.startswith(key)}
            self._arrays = {name: place for name, place in self._arrays.items() if not name.startswith(key)}

    def _read_log(self) -> None:
        offset = int(self._head[_LOG])
        length = int(self._pages.map(offset, _WORDS_BYTES).view(np.int64)[_LENGTH])
        self._open_log(offset, length)
        at, end = _WORDS_BYTES, int(self._words[_END])
        while at < end:
            kind, key_bytes, value_bytes = _RECORD.unpack_from(self._log.data, at)
            key_at = at + _RECORD.size
            value_at = key_at + key_bytes
            at = value_at + value_bytes
            self._apply(kind, self._log[key_at:value_at].tobytes().decode(), self._log[value_at:at].tobytes())

    def _shorten_log(self, room_bytes: int) -> None:
        """Begin a new log with the records that are still valid, and room for at least as much again. This is rare."""
        records = [_packed(_PUT, key, value) for key, value in self._records.items()]
        records += [_packed(_ARRAY, name, _PLACE.pack(*place)) for name, place in self._arrays.items()]
        live = b"".join(records)
        before = int(self._head[_LOG]), self._log.nbytes
        self._begin_log(live, max(_LEAST_LOG_BYTES, _WORDS_BYTES + 2 * (len(live) + room_bytes)))
        self._pages.give_back(*before)

    def _begin_log(self, records: bytes, length: int) -> None:
        offset = self._pages.take(length)
        self._open_log(offset, length)
        self._log.data[_WORDS_BYTES : _WORDS_BYTES + len(records)] = records
        self._words[_LENGTH] = length
        self._words[_END] = _WORDS_BYTES + len(records)
        self._head[_LOG] = offset  # the new log takes effect here

    def _open_log(self, offset: int, length: int) -> None:
        self._log = self._pages.map(offset, length)
        self._words = self._log[:_WORDS_BYTES].view(np.int64)


def _packed(kind: int, key: str, value: bytes) -> bytes:
    name = key.encode()
    return _RECORD.pack(kind, len(name), len(value)) + name + value
