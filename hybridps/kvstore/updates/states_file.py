"""Optimizer states in a file: NumPy arrays, and JSON that describes them. Nothing is unpickled.

A file is a `.npz` archive. Its array `json` has the text, and the others are numbered. In the text a container, an
array or a learning-rate schedule is an object with one field, which names its kind. A class is identified by its name:
it is that of the store's optimizer or of its schedule, or one of MXNet's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from copy import copy
from io import BytesIO
from typing import Any

import mxnet as mx
import numpy as np
from mxnet.ndarray import NDArray
from mxnet.ndarray.sparse import RowSparseNDArray

from hybridps.errors import HybridPSError

NOT_SAVED = {"param_dict", "_index_update_count"}
"""Attributes of an optimizer that are left out: the Trainer's parameters, and a second name for the counts of one
device."""


def states_to_bytes(updater: Any, dump_optimizer: bool) -> bytes:
    """Return the contents of a file with the states of an updater, and with its optimizer if `dump_optimizer`.

    Attributes of the optimizer other than numbers, text, arrays and containers of these are left out. An updater with
    its own `get_states` decides the contents. Raises HybridPSError for states of other types.
    """
    if not _is_mxnets(updater):
        return updater.get_states(dump_optimizer)  # type: ignore[no-any-return]
    arrays: list[np.ndarray] = []
    content = {"states": _encoded(updater.states, arrays), "optimizer": None}
    if dump_optimizer:
        content["optimizer"] = _encoded_object(updater.optimizer, arrays)
    text = np.frombuffer(json.dumps(content).encode(), np.uint8)
    file = BytesIO()
    np.savez(file, json=text, **{str(number): array for number, array in enumerate(arrays)})
    return file.getvalue()


def set_states(updater: Any, content: bytes, name: str) -> None:
    """Give an updater the states of a file, and the file's optimizer if it has one. `name`: that of the file.

    Raises HybridPSError, and changes nothing, for a file that `states_to_bytes` has not made.
    """
    if not _is_mxnets(updater):
        updater.set_states(content)
        return
    if not content.startswith(b"PK"):
        raise HybridPSError(
            f"{name} is not a file of optimizer states: it must have arrays and JSON, as save_optimizer_states of this "
            "store writes them. MXNet's own states are pickles, which can run any code, and are not read"
        )
    try:
        with np.load(BytesIO(content), allow_pickle=False) as file:
            found = json.loads(bytes(file["json"]))
            states = _decoded(found["states"], file, updater.optimizer)
            optimizer = found["optimizer"] and _decoded_optimizer(found["optimizer"], file, updater.optimizer)
            if not isinstance(states, dict) or not all(map(_is_state, states.values())):
                raise ValueError("it has no states by keys")
    except HybridPSError:
        raise
    except Exception as error:  # NumPy, zipfile and JSON raise many types for a damaged file
        raise HybridPSError(f"{name} is not a file of optimizer states, or is damaged: {error}") from None
    updater.states, updater.states_synced = states, dict.fromkeys(states, False)
    updater.optimizer = optimizer or updater.optimizer


def _is_mxnets(updater: Any) -> bool:
    """Return whether an updater keeps its states as MXNet's own does, so that they can be saved here."""
    own = mx.optimizer.Updater
    kind: Any = type(updater)
    return isinstance(updater, own) and kind.get_states is own.get_states and kind.set_states is own.set_states


def _is_state(value: Any) -> bool:
    """Return whether a value has the form of the state that optimizers keep for a parameter."""
    return (
        value is None or isinstance(value, NDArray) or (isinstance(value, (list, tuple)) and all(map(_is_state, value)))
    )


def _encoded(value: Any, arrays: list[np.ndarray]) -> Any:
    """Return a value in the form for JSON, and append its arrays to `arrays`. Raises HybridPSError for other types."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, (list, tuple)):
        return {"list" if isinstance(value, list) else "tuple": [_encoded(each, arrays) for each in value]}
    if isinstance(value, dict):
        return {"dict": [[_encoded(key, arrays), _encoded(each, arrays)] for key, each in value.items()]}
    if isinstance(value, RowSparseNDArray):
        rows = [_encoded(each, arrays) for each in (value.data, value.indices)]
        return {"rows": [*rows, list(value.shape)]}
    if isinstance(value, NDArray) and value.stype == "default":
        arrays.append(value.asnumpy())
        return {"array": len(arrays) - 1}
    if isinstance(value, mx.lr_scheduler.LRScheduler):
        return {"schedule": _encoded_object(value, arrays)}
    raise HybridPSError(f"optimizer states with a {type(value).__name__} cannot be saved: use arrays and numbers")


def _encoded_object(value: Any, arrays: list[np.ndarray]) -> dict[str, Any]:
    """Return the class of an optimizer or a schedule, and its attributes."""
    attributes = {}
    for name, each in vars(value).items():
        if name in NOT_SAVED:
            continue
        try:
            attributes[name] = _encoded(each, arrays)
        except HybridPSError:  # of a class of the program, which sets it again
            continue
    return {"class": type(value).__name__, "attributes": attributes}


def _decoded(value: Any, arrays: Mapping[str, np.ndarray], optimizer: Any) -> Any:
    """Return a value from JSON. `optimizer`: the store's, whose schedule may be of a class of the program."""
    if not isinstance(value, dict):
        return value
    ((form, inner),) = value.items()
    if form == "array":
        return _as_mxnets(arrays[str(inner)])
    if form == "rows":
        data, indices, shape = inner
        return _with_rows(arrays[str(data["array"])], arrays[str(indices["array"])], tuple(shape))
    if form == "schedule":
        return _decoded_schedule(inner, arrays, optimizer)
    if form == "dict":
        return {_decoded(key, arrays, optimizer): _decoded(each, arrays, optimizer) for key, each in inner}
    values = [_decoded(each, arrays, optimizer) for each in inner]
    return {"list": list, "tuple": tuple}[form](values)


def _as_mxnets(array: np.ndarray) -> NDArray:
    return mx.nd.array(array, dtype=array.dtype) if array.size else mx.nd.zeros(array.shape, dtype=array.dtype)


def _with_rows(data: np.ndarray, indices: np.ndarray, shape: tuple[int, ...]) -> RowSparseNDArray:
    if not len(indices):
        return mx.nd.sparse.zeros("row_sparse", shape, dtype=data.dtype)
    if not 0 <= indices.min() <= indices.max() < shape[0]:
        raise ValueError(f"rows from {indices.min()} to {indices.max()} of {shape[0]}")
    return mx.nd.sparse.row_sparse_array((data, indices), shape=shape, dtype=data.dtype)


def _decoded_schedule(saved: Mapping[str, Any], arrays: Mapping[str, np.ndarray], optimizer: Any) -> Any:
    own = getattr(optimizer, "lr_scheduler", None)
    known = {name: kind for name, kind in vars(mx.lr_scheduler).items() if _is_schedule(kind)}
    return _made(saved, own, known.get(saved["class"]), arrays, optimizer)


def _is_schedule(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, mx.lr_scheduler.LRScheduler)


def _decoded_optimizer(saved: Mapping[str, Any], arrays: Mapping[str, np.ndarray], own: Any) -> Any:
    kind = mx.optimizer.Optimizer.opt_registry.get(saved["class"].lower())
    made = _made(saved, own, kind, arrays, own)
    made.param_dict = {}
    counts: dict[Any, int] = {}  # of all devices: another worker may have saved it, on another device
    for device in made._all_index_update_counts.values():
        counts |= {index: max(count, counts.get(index, 0)) for index, count in device.items()}
    made._all_index_update_counts = {0: counts}
    made._set_current_context(0)
    return made


def _made(saved: Mapping[str, Any], own: Any, kind: Any, arrays: Mapping[str, np.ndarray], optimizer: Any) -> Any:
    """Return an optimizer or a schedule with the saved attributes, of `own`'s class if it has that name, or of `kind`.

    Raises HybridPSError if there is neither.
    """
    if type(own).__name__ == saved["class"]:
        made = copy(own)
    elif kind is not None:
        made = kind.__new__(kind)
    else:
        raise HybridPSError(
            f"the file has the states of {saved['class']!r:.60}, which is not MXNet's: set such an optimizer first"
        )
    vars(made).update({name: _decoded(each, arrays, optimizer) for name, each in saved["attributes"].items()})
    return made
