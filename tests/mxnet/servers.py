"""What scripts ask servers for beside keys. Run by test_servers.py, as `servers.py NAME...`, on two workers."""

import json
import os
import sys
import time
from collections import Counter
from pathlib import Path

import mxnet as mx
import pytest
from mxnet import nd
from mxnet.profiler import set_state  # before hybridps may have changed anything

import hybridps.kvstore  # noqa: F401
from hybridps.config import world_rank

rank = world_rank()
folder = Path(os.environ.get("FOLDER", "."))
has_servers = os.environ.get("HYBRIDPS_GROUPS") == "2"
PUSHES = 5


def push(kv, times=PUSHES):
    out = nd.zeros(100)
    for _ in range(times):
        kv.push("w", nd.ones(100))
        kv.pull("w", out=out)
    nd.waitall()
    return out.asnumpy()


def commands():
    kv = mx.kv.create("dist_hybridps_sync")
    kv.init("w", nd.zeros(100))
    kv._send_command_to_servers(77, "to whom it may concern")
    kv._send_command_to_servers(3, "")
    for head, said in ((0, "set_optimizer"), (2, "stops the servers"), (4, "set_gradient_compression")):
        with pytest.raises(mx.MXNetError, match=said):
            kv._send_command_to_servers(head, "body")
    with pytest.raises(mx.MXNetError, match="multi_precision=True"):
        kv._send_command_to_servers(1, "")
    kv.set_optimizer(mx.optimizer.SGD(learning_rate=1.0, multi_precision=True))
    kv._send_command_to_servers(1, "")
    if rank == 0:
        kv._send_command_to_servers(77, "of one worker alone")
    assert (push(kv) == -2.0 * PUSHES).all()
    with pytest.raises(mx.MXNetError, match="no command to a profiler"):
        kv._send_command_to_servers(5, "nonsense")
    asynchronous = mx.kv.create("dist_hybridps_async")
    with pytest.raises(mx.MXNetError, match="dist_hybridps_sync"):
        asynchronous._send_command_to_servers(3, "")


def spans(name):
    """Of the file, how many there are of each name; None if there is no file."""
    path = folder / name
    if not path.exists():
        return None
    events = json.loads(path.read_text())["traceEvents"]
    assert all(each["dur"] >= 0 and each["ts"] >= 0 for each in events if each["ph"] == "X")
    return Counter(each["name"] for each in events if each["ph"] == "X")


def profile():
    kv = mx.kv.create("dist_hybridps_sync")
    kv.init("w", nd.zeros(100))
    push(kv)
    mx.profiler.set_config(filename=str(folder / "server.json"), profile_all=True, profile_process="server")
    set_state("run", profile_process="server")
    kv.barrier()
    push(kv)
    kv.barrier()
    mx.profiler.pause(profile_process="server")
    kv.barrier()
    push(kv, 3)
    kv.barrier()
    mx.profiler.resume(profile_process="server")
    kv.barrier()
    push(kv, 1)
    kv.barrier()
    set_state("stop", profile_process="server")
    kv.barrier()
    push(kv)
    if rank == 0:
        mx.profiler.dump(profile_process="server")
        found = spans("rank0_server.json")
        if not has_servers:
            assert found is None
        else:
            # One array, one chunk: a round of each push, and one of each barrier that was profiled to its end.
            rounds = found["round"]
            assert PUSHES + 1 <= rounds <= PUSHES + 1 + 6, found
            assert found["exchange"] >= 2 * (PUSHES + 1), found
            (folder / "rank0_server.json").unlink()
            mx.profiler.dump(profile_process="server")
            assert spans("rank0_server.json") is None  # it was ended
    kv.barrier()


def profile_by_commands():
    kv = mx.kv.create("dist_hybridps_sync")
    mx.profiler.set_kvstore_handle(kv.handle)
    kv.init("w", nd.zeros(100))
    os.chdir(folder)
    kv._send_command_to_servers(5, "filename:commands.json,profile_all:True0")
    kv._send_command_to_servers(5, "11")
    kv.barrier()
    push(kv)
    kv.barrier()
    kv._send_command_to_servers(5, "13")
    if rank == 0 and has_servers:
        assert spans("rank0_commands.json")["round"] >= PUSHES
    kv.barrier()


def profile_without_dump():
    """Written at the end of the job, as with MXNet's servers; the test looks."""
    kv = mx.kv.create("dist_hybridps_sync")
    kv.init("w", nd.zeros(100))
    mx.profiler.set_config(filename=str(folder / "late.json"), profile_process="server")
    set_state("run", profile_process="server")
    kv.barrier()
    push(kv)


def profile_to_nowhere():
    """As the job ends there is nobody to be told but the user."""
    kv = mx.kv.create("dist_hybridps_sync")
    kv.init("w", nd.zeros(100))
    mx.profiler.set_config(filename=str(folder / "nowhere" / "late.json"), profile_process="server")
    set_state("run", profile_process="server")
    push(kv)


def profile_amid_steps():
    """What one worker asks for alone, between the gradients of a step, changes no sum and stops nobody."""
    kv = mx.kv.create("dist_hybridps_sync")
    keys = ["a", "b", "c"]
    for key in keys:
        kv.broadcast(key, nd.zeros(100), out=nd.zeros(100))
    mx.profiler.set_config(filename=str(folder / "amid.json"), profile_process="server")
    for step in range(8):
        sums = [nd.ones(100) * (rank + step) for _ in keys]
        for number, key in enumerate(keys):
            if rank == 0 and number == step % 3:
                set_state("run" if step < 6 else "stop", profile_process="server")
            if rank == 0 and number == 1 and step == 4:
                mx.profiler.dump(finished=False, profile_process="server")
            kv.pushpull(key, sums[number], priority=-number)
        assert all((each.asnumpy() == 2 * step + 1).all() for each in sums), step
    if rank == 0:
        mx.profiler.dump(profile_process="server")
        assert has_servers == bool(spans("rank0_amid.json"))
    kv.barrier()


def profile_wrongly():
    kv = mx.kv.create("dist_hybridps_sync")
    kv.init("w", nd.zeros(100))
    with pytest.raises(mx.MXNetError, match="colour is no option of the profiler"):
        mx.profiler.set_config(colour="red", profile_process="server")
    with pytest.raises(mx.MXNetError, match="names no file"):
        mx.profiler.set_config(filename="", profile_process="server")
    mx.profiler.set_config(filename=str(folder / "nowhere" / "server.json"), profile_process="server")
    set_state("run", profile_process="server")
    kv.barrier()
    push(kv)
    if rank == 0 and has_servers:
        with pytest.raises(mx.MXNetError, match="give mx.profiler.set_config another filename"):
            mx.profiler.dump(profile_process="server")
    mx.profiler.set_config(filename=str(folder / "server.json"), profile_process="server")
    mx.profiler.dump(profile_process="server")
    kv.barrier()


def profile_of_the_worker():
    """As it is without a store."""
    kv = mx.kv.create("dist_hybridps_sync")
    kv.init("w", nd.zeros(100))
    name = f"worker-{rank}.json"
    mx.profiler.set_config(filename=str(folder / name), profile_all=True)
    set_state("run")
    nd.dot(nd.ones((9, 9)), nd.ones((9, 9))).wait_to_read()
    set_state("stop")
    mx.profiler.dump()
    assert "dot" in (folder / name).read_text()
    kv.barrier()


def handles():
    """Nothing that MXNet's store does with its handle is left: ours is a null pointer."""
    import inspect

    from mxnet.kvstore import KVStore

    kv = mx.kv.create("dist_hybridps_sync")
    functions = {name: getattr(of, "fget", of) for name, of in vars(KVStore).items()}
    sources = {name: inspect.getsource(of) for name, of in functions.items() if inspect.isfunction(of)}
    uses = [name for name, source in sources.items() if "self.handle" in source]
    left = [name for name in uses if getattr(type(kv), name) is vars(KVStore)[name] and name != "__init__"]
    assert len(uses) > 10
    assert not left, left


def dead_nodes():
    """The second group dies; the workers of the first one go on, and each is told when it asks."""
    kv = mx.kv.create("dist_hybridps")
    if kv.type == "dist_hybridps_async":
        kv.set_optimizer(mx.optimizer.SGD(learning_rate=1.0))
    kv.init("w", nd.zeros(100))
    half = kv.num_workers // 2
    assert (kv.num_dead_node(), kv.num_dead_node(4, timeout=30)) == (0, 0)
    kv.barrier()
    if kv.rank >= half:
        os._exit(3)
    end = time.monotonic() + 60
    while kv.num_dead_node(4, timeout=5) < half and time.monotonic() < end:
        time.sleep(0.1)
    numbers = {node: kv.num_dead_node(node, timeout=5) for node in (0, 1, 2, 4, 6, 7, 9, 9 + 2 * half, 9 + 4 * half)}
    assert numbers == {0: half, 1: 0, 2: 0, 4: half, 6: half, 7: half, 9: 0, 9 + 2 * half: 1, 9 + 4 * half: 0}, numbers
    assert kv.num_dead_node(4, timeout=600) == half, "the launcher has seen them end"
    assert kv.num_workers == 2 * half
    push(kv)


def a_dead_node_of_a_rack():
    """Of four groups in two racks the last one dies: the other one of its rack is told."""
    kv = mx.kv.create("dist_hybridps_sync")
    kv.init("w", nd.zeros(100))
    kv.barrier()
    if kv.rank == 3:
        os._exit(3)
    end = time.monotonic() + 60
    while kv.rank == 2 and not kv.num_dead_node(timeout=5) and time.monotonic() < end:
        time.sleep(0.1)
    push(kv)
    dead = [kv.num_dead_node(node, timeout=5) for node in (0, 9, 11, 13, 15)]
    assert dead == ([1, 0, 0, 0, 1] if kv.rank == 2 else [0] * 5), dead


if __name__ == "__main__":
    for name in sys.argv[1:]:
        globals()[name]()
        print(f"{name} is right", flush=True)
