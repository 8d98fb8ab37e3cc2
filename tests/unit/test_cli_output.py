"""The output of many processes: lines, progress bars, noise, prefixes."""

from __future__ import annotations

import io
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridps.cli.run.children import output
from hybridps.cli.run.children.noise import NoiseFilter
from hybridps.cli.run.children.output import ERR, LineSplitter, Screen

DASHES = "-" * 74
KILLED = [
    DASHES,
    "prterun noticed that process rank 1 with PID 4585 on node vm exited on",
    "signal 9 (Killed).",
    DASHES,
]
EXITED = [
    DASHES,
    "prterun detected that one or more processes exited with non-zero status,",
    "thus causing the job to be terminated. The first process to do so was:",
    "",
    "   Process name: [prterun-vm-4593@1,2]",
    "   Exit code:    3",
    DASHES,
]
ABORTED = [
    DASHES,
    "MPI_ABORT was invoked on rank 3 in communicator MPI_COMM_WORLD",
    "  Proc: [[4328,1],1]",
    DASHES,
    DASHES,
    "prterun has exited due to process rank 1 with PID 0 on node vm calling",
    '"abort". This may have caused other processes in the application to be',
    "terminated by signals sent by prterun (as reported here).",
    DASHES,
]
HELP = [DASHES, "There are not enough slots available in the system to satisfy the 4", "slots", DASHES]


def lines_of(*pieces: bytes) -> list[str]:
    splitter = LineSplitter()
    lines = [line for piece in pieces for line in splitter.feed(piece)]
    return [*lines, *splitter.end()]


@pytest.mark.parametrize(
    ("pieces", "lines"),
    [
        ([b"a\nb\n"], ["a", "b"]),
        ([b"a", b"b\nc"], ["ab", "c"]),
        ([b"last"], ["last"]),
        ([b"\n\n"], ["", ""]),
        ([b"crlf\r\n", b"split\r", b"\n"], ["crlf", "split"]),
        ([b"\r10%", b"\r20%", b"\r100%\n", b"next\n"], ["100%", "next"]),
        ([b"\r10%\r   \rdone\n"], ["done"]),
        ([b"epoch 1 10%\repoch 1 20%\r", b"epoch 1 done\n"], ["epoch 1 done"]),
        ([b"\0x\0\n\0"], ["x"]),
        (["ä".encode()[:1], "ä".encode()[1:] + b"\xff\n"], ["ä\ufffd"]),
    ],
)
def test_only_whole_lines_remain(pieces: list[bytes], lines: list[str]) -> None:
    assert lines_of(*pieces) == lines


def test_a_line_that_rewrites_itself_is_transient() -> None:
    splitter = LineSplitter()
    assert list(splitter.feed(b"plain")) == []
    assert splitter.transient == ""
    for piece, shown in ((b"\r10%", "10%"), (b"\r20", "20"), (b"%\r", "20%"), (b"30%", "30%")):
        assert list(splitter.feed(piece)) == []
        assert splitter.transient == shown
    assert list(splitter.end()) == ["30%"]


def test_a_progress_bar_does_not_fill_the_memory() -> None:
    splitter = LineSplitter()
    for _ in range(1000):
        assert list(splitter.feed(b"\r" + b"#" * 100)) == []
    assert len(splitter.transient) == 100


def test_an_endless_line_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "LONGEST_LINE", 10)
    assert lines_of(b"a" * 11, b"b\n") == ["a" * 11, "b"]


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\r\n\0")), min_size=1), st.data())
def test_lines_do_not_depend_on_how_the_bytes_came(lines: list[str], data: st.DataObject) -> None:
    everything = "".join(line + "\n" for line in lines).encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(everything)))))
    pieces = [everything[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(everything)], strict=True)]
    assert lines_of(*pieces) == lines


@pytest.mark.parametrize(("block", "rank"), [(KILLED, 1), (EXITED, 2), (ABORTED, 3)])
def test_what_mpirun_says_of_dead_ranks_is_dropped_and_the_rank_kept(block: list[str], rank: int) -> None:
    noise = NoiseFilter()
    shown = [line for sent in ["before", *block, "after"] for line in noise.feed(sent)]
    assert shown == ["before", "after"]
    assert noise.first_rank == rank
    assert noise.end() == []


def test_a_message_that_begins_in_the_last_line_of_a_rank_is_dropped() -> None:
    noise = NoiseFilter()
    assert [line for sent in ["before" + ABORTED[0], *ABORTED[1:], "after"] for line in noise.feed(sent)] == [
        "before",
        "after",
    ]
    assert noise.first_rank == 3


def test_a_line_of_a_script_that_ends_in_dashes_comes_out_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    noise, line = NoiseFilter(), "layers " + DASHES
    assert [noise.feed(line), noise.feed("conv")] == [[], []]
    monkeypatch.setattr(noise, "HOLD_SECONDS", 0.0)
    assert noise.tick() == [line, "conv"]
    assert [shown for sent in [line, "conv", DASHES] for shown in noise.feed(sent)] == [line, "conv", DASHES]


def test_a_host_that_is_gone_is_noted() -> None:
    said = """PRTE has lost communication with a remote daemon.

  HNP daemon   : [prterun-hosta-72@0,0] on node hosta
  Remote daemon: [prterun-hosta-72@0,1] on node hostb

This is usually due to either a failure of the TCP network
connection to the node, or possibly an internal failure of
the daemon itself. We cannot recover from this failure, and
therefore will terminate the job."""
    noise = NoiseFilter()
    assert [shown for line in ["-" * 74, *said.splitlines(), "-" * 74] for shown in noise.feed(line)] == []
    assert (noise.lost_host, noise.first_rank) == ("hostb", None)


def test_a_host_that_cannot_be_reached_is_noted_and_the_advice_shown() -> None:
    said = """A daemon failed to report back after being spawned. This could
be due to several factors.

  Local host:    hosta
  Remote host:   hostb
  Daemon exit status: 255

This may also be caused by a firewall on the remote host."""
    for blocks in (False, True):
        noise, lines = NoiseFilter(blocks=blocks), ["-" * 60, *said.splitlines(), "-" * 60]
        assert [shown for line in lines for shown in noise.feed(line)] == lines
        assert noise.lost_host == "hostb"


def test_other_messages_of_mpirun_come_out_unchanged() -> None:
    noise = NoiseFilter()
    assert [line for sent in HELP for line in noise.feed(sent)] == HELP


def test_a_line_of_dashes_that_opens_nothing_is_not_held_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = NoiseFilter()
    assert noise.feed(DASHES) == []
    assert noise.feed("of a table") == []
    assert noise.tick() == []
    monkeypatch.setattr(noise, "HOLD_SECONDS", 0.0)
    assert noise.tick() == [DASHES, "of a table"]
    assert noise.feed("on") == ["on"]


def test_a_long_block_is_not_held() -> None:
    noise = NoiseFilter()
    sent = [DASHES, *map(str, range(100))]
    assert [line for part in sent for line in noise.feed(part)] == sent


def test_what_mpich_says_is_dropped_and_the_signal_kept() -> None:
    noise = NoiseFilter(blocks=False)
    said = [
        "=" * 83,
        "=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES",
        "=   EXIT CODE: 9",
        "=" * 83,
        "YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)",
        "Please see the FAQ page for debugging suggestions",
    ]
    assert [line for part in said for line in noise.feed(part)] == []
    assert noise.signal == 9
    assert noise.feed(DASHES) == [DASHES]


def test_what_intel_mpi_says_of_each_rank_is_dropped_with_the_empty_line_before() -> None:
    noise = NoiseFilter(blocks=False)
    block = ["", "=" * 83, "=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES", "=   RANK 0 PID 7 RUNNING AT a"]
    said = ["a line", *block, "=" * 83, *block, "=" * 83]
    assert [line for part in said for line in noise.feed(part)] == ["a line"]
    assert noise.end() == []


def test_the_rank_that_aborted_is_known() -> None:
    noise = NoiseFilter()
    said = "Abort(4) on node 3 (rank 1 in comm 0): application called MPI_Abort(MPI_COMM_WORLD, 4) - process 3"
    assert noise.feed(said) == []
    assert noise.first_rank == 3
    for shown, line in (([], said), (["50%"], f"50%{said}")):
        noise = NoiseFilter()
        assert noise.of_rank(line) == shown
        assert noise.first_rank == 3


def test_the_rank_of_a_fatal_error_is_known_and_the_error_is_shown() -> None:
    noise = NoiseFilter()
    said = "Abort(17) on node 2 (rank 2 in comm 0): Fatal error in internal_Send: Invalid rank, error stack:"
    assert noise.of_rank(said) == [said]
    assert noise.first_rank == 2
    assert NoiseFilter(blocks=False).of_rank(said) == [said]


@pytest.mark.parametrize(
    ("said", "host", "is_some"),
    [
        ("[mpiexec@a] Error: Unable to run bstrap_proxy on node7 (pid 5, exit code 65280)", "node7", False),
        ("[mpiexec@a] ui_cmd_cb (mpiexec/pmiserv_pmci.c:51): Launch proxy failed.", "", True),
        ("Launch proxy failed.", "", False),
    ],
)
def test_a_host_that_cannot_be_reached_is_known(said: str, host: str, is_some: bool) -> None:
    noise = NoiseFilter()
    assert noise.feed(said) == [said]
    assert (noise.lost_host, noise.lost_some_host) == (host, is_some)


def test_empty_lines_of_a_script_come_out_in_their_place(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = NoiseFilter(blocks=False)
    said = ["", "", "a", "", "=" * 83, "b", ""]
    assert [line for part in said for line in noise.feed(part)] == said[:-1]
    assert noise.tick() == []
    monkeypatch.setattr(noise, "HOLD_SECONDS", 0.0)
    assert noise.tick() == [""]
    assert NoiseFilter().feed("") == [""]


SUMMARY = ["=" * 80, "Layer (type)  Output Shape", "=" * 80, "", "=   Accuracy 3", "=" * 120, "=" * 120, "the end"]


@pytest.mark.parametrize("blocks", [True, False])
def test_what_a_script_says_between_equals_signs_comes_out_unchanged(
    blocks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise = NoiseFilter(blocks=blocks)
    assert [line for part in SUMMARY for line in noise.feed(part)] == SUMMARY
    assert noise.feed("=" * 80) == []
    monkeypatch.setattr(noise, "HOLD_SECONDS", 0.0)
    assert noise.tick() == ["=" * 80]


def test_what_the_terminal_cannot_write_is_written_otherwise() -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    Screen(out, io.StringIO(), ["group 0"]).line("group 0", "50%|█ \ufffd ä")
    assert out.buffer.getvalue() == b"[group 0] 50%|\\u2588 \\ufffd \xe4\n"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_pipe_gets_plain_lines() -> None:
    out, err = io.StringIO(), io.StringIO()
    screen = Screen(out, err, ["group 0"])
    screen.transient("group 0", "10%")
    screen.line("group 0", "a")
    screen.line("group 0", "b", ERR)
    screen.message("c")
    screen.clear()
    assert out.getvalue() == "[group 0] a\n"
    assert err.getvalue() == "[group 0] b\nhybridps: c\n"


def test_a_terminal_gets_the_progress_bar_below_the_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    terminal = Terminal()
    screen = Screen(terminal, terminal, ["group 0"])
    screen.transient("group 0", "10%")
    screen.line("group 0", "a")
    screen.transient("group 0", "", ERR)
    screen.transient("group 0", "")
    wipe = "\r\x1b[2K"
    assert terminal.getvalue() == f"{wipe}[group 0] 10%{wipe}[group 0] a\n{wipe}[group 0] 10%{wipe}"


def test_a_terminal_with_colours_gets_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    terminal = Terminal()
    Screen(terminal, terminal, ["group 0"]).line("group 0", "a")
    assert terminal.getvalue() == "\x1b[36m[group 0]\x1b[0m a\n"


def test_a_reader_that_goes_away_does_not_end_the_job() -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    screen = Screen(Gone(), io.StringIO(), ["group 0"])
    screen.line("group 0", "a")
    screen.line("group 0", "b")


PRINTS = """
import sys
from hybridps.cli.run.children.output import ERR, Screen

screen = Screen(sys.stdout, sys.stderr, ["group 0"])
screen.line("group 0", "out")
screen.line("group 0", "err", ERR)
print("the summary")
sys.exit(3)
"""


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
@pytest.mark.parametrize("place", ["a full disk", "a closed pipe"])
def test_the_status_is_that_of_the_job_though_the_output_cannot_be_written(stream: str, place: str) -> None:
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with open("/dev/full" if place == "a full disk" else closed_pipe(), "w") as broken:
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, stream: broken}
        done = subprocess.run([sys.executable, "-c", PRINTS], env=environ, text=True, timeout=100, **streams)
    assert done.returncode == 3
    if stream == "stdout":
        said = "hybridps: the job's output can no longer be written: No space left on device\n"
        assert done.stderr == (said if place == "a full disk" else "") + "[group 0] err\n"
    else:
        assert done.stdout == "[group 0] out\nthe summary\n"


def closed_pipe() -> int:
    reader, writer = os.pipe()
    os.close(reader)
    return writer
