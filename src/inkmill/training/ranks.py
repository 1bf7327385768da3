"""How several ranks end together: when one fails, all end soon, and one sentence says why; all stop at one step.

A rank that has failed no longer takes part in collectives, and the others would wait for it there: with NCCL half an
hour and more, with gloo until a connection breaks, of which each tells with a traceback of its own. So every rank has a
thread that looks every half second into the process group's store, by a connection of its own. The rank that fails
first leaves its reason there, and stays until the others have heard it. A process that was killed leaves none; those on
the same machine see that it is gone. Without failure all leave together.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, cast

import torch
from lightning.fabric import Fabric

from inkmill.errors import InkmillError

LOOK_EVERY_S = 0.5
HEARD_WITHIN_S = 10.0
"""How long a failed rank stays for the others to hear of it."""
_FAILED, _HEARD, _DONE, _PROCESS = "inkmill/failed", "inkmill/heard", "inkmill/done", "inkmill/process/"
_EXIT_CODE = 2


def all_reduce_sum(fabric: Fabric, numbers: list[float]) -> list[float]:
    """Return the sums of some numbers over all ranks, each of which calls this; waits for the device."""
    mine = torch.tensor(numbers, dtype=torch.float64, device=fabric.device)
    sums: list[float] = cast(torch.Tensor, fabric.all_reduce(mine, reduce_op="sum")).tolist()
    return sums


@contextmanager
def fail_fast(fabric: Fabric, tell: Callable[[str], None]) -> Iterator[None]:
    """End this process with exit code 2 as soon as another rank has failed inside the same context.

    Args:
        fabric: launched; with one rank nothing is done.
        tell: gets the sentence on rank 0 before it ends; the other ranks end without a word.

    Raises:
        Whatever is raised inside, after the other ranks have heard of it.
    """
    if fabric.world_size == 1:
        yield
        return
    watch = _Watch(fabric, tell)
    watch.start()
    try:
        yield
        watch.done()
    except (KeyboardInterrupt, SystemExit):  # Ctrl-C and SIGTERM reach every rank
        raise
    except BaseException as error:
        watch.failed(error)
        raise
    finally:
        watch.stop()


def _cache() -> Any:
    """Return the store of the process group, by a connection that nothing waits on."""
    from torch.distributed import distributed_c10d

    return distributed_c10d._get_default_store().clone()


class _Watch(threading.Thread):
    """Ends the process where another rank has failed; torch's errors of a lost store are RuntimeErrors."""

    def __init__(self, fabric: Fabric, tell: Callable[[str], None]) -> None:
        super().__init__(daemon=True, name="inkmill-ranks")
        self._rank, self._ranks, self._node = fabric.global_rank, fabric.world_size, str(fabric.node_rank)
        self._cache, self._tell = _cache(), tell
        self._over, self._is_done = threading.Event(), False
        self._processes: dict[int, int] = {}
        """Of the ranks that are known; in place of one on another machine, which cannot be seen, stands this one."""
        self._cache.set(f"{_PROCESS}{self._rank}", f"{os.getpid()} {self._node}")

    def run(self) -> None:
        """Look until this rank ends or another has failed."""
        while not self._over.wait(LOOK_EVERY_S):
            if (sentence := self._trouble()) and not self._over.is_set():
                self._end(sentence)

    def _trouble(self) -> str:
        """Return which rank has failed or is gone, or nothing."""
        try:
            if self._cache.check([_FAILED]):
                return str(self._cache.get(_FAILED).decode())
            for rank in set(range(self._ranks)) - {self._rank, *self._processes}:
                if self._cache.check([f"{_PROCESS}{rank}"]):
                    number, _, node = self._cache.get(f"{_PROCESS}{rank}").decode().partition(" ")
                    self._processes[rank] = int(number) if node == self._node else os.getpid()
        except RuntimeError:  # rank 0 held the store
            return "" if self._is_done else self._gone(0)
        return next((self._gone(rank) for rank, process in self._processes.items() if not _is_alive(process)), "")

    def _gone(self, rank: int) -> str:
        return (
            f"rank {rank} of {self._ranks} is gone without a word, so training stops; was it killed, for want of "
            "memory perhaps?"
        )

    def _end(self, sentence: str) -> None:
        speaks = 1 if sentence == self._gone(0) else 0
        if self._rank == speaks:
            with suppress(InkmillError, OSError):
                self._tell(sentence)
            with suppress(OSError):
                sys.stderr.write(f"inkmill: {sentence}\n")
                sys.stderr.flush()
        with suppress(RuntimeError):
            self._cache.add(_HEARD, 1)
        with suppress(OSError):
            sys.stdout.flush()
        os._exit(_EXIT_CODE)  # the main thread is inside a collective, from which no exception gets it out

    def failed(self, error: BaseException) -> None:
        """Tell the other ranks, and wait until they have heard it; what another rank's failure caused is not told."""
        self.stop()
        if not isinstance(error, InkmillError):  # a collective that broke, perhaps
            time.sleep(LOOK_EVERY_S)
            if sentence := self._trouble():
                self._end(sentence)
        reason = str(error) if isinstance(error, InkmillError) else f"{type(error).__name__}: {error}"
        said = f"rank {self._rank} of {self._ranks} failed, so training stops: {' '.join(reason.split())}"
        with suppress(RuntimeError):
            if self._cache.compare_set(_FAILED, "", said).decode() != said:
                self._cache.add(_HEARD, 1)
                return
            until = time.monotonic() + HEARD_WITHIN_S
            while self._cache.add(_HEARD, 0) < self._ranks - 1 and time.monotonic() < until:
                time.sleep(LOOK_EVERY_S / 5)

    def done(self) -> None:
        """Wait for the other ranks: one that leaves earlier would be missed."""
        self._is_done = True
        with suppress(RuntimeError):
            self._cache.add(_DONE, 1)
            while self._cache.add(_DONE, 0) < self._ranks:
                time.sleep(LOOK_EVERY_S / 5)

    def stop(self) -> None:
        """End nothing any more."""
        self._over.set()


def _is_alive(process: int) -> bool:
    """Return False for a process that has ended, where the system can be asked (Linux)."""
    if not Path("/proc/self/stat").is_file():
        return True
    try:
        state = Path(f"/proc/{process}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


class StopSignal:
    """What a signal has asked for.

    Args:
        fabric: launched.
        say: prints one line.
        every: steps between two times that several ranks agree.
    """

    def __init__(self, fabric: Fabric, say: Callable[[str], None], every: int) -> None:
        self._fabric, self._say, self._every = fabric, say, every
        self._asked = False

    def asked(self, step: int) -> bool:
        """Return whether the run is to stop after `step`; several ranks agree, or one would wait for ever."""
        if self._fabric.world_size == 1:
            return self._asked
        return not step % self._every and all_reduce_sum(self._fabric, [float(self._asked)])[0] > 0

    @contextmanager
    def listened_for(self) -> Iterator[None]:
        """Take note of signals; afterwards they do again what they did before."""

        def note(number: int, frame: FrameType | None) -> None:
            self._asked = True
            signal.signal(number, previous[number])
            self._say("stopping: this step is finished and a checkpoint saved; once more to stop at once")

        previous: dict[int, Any] = {}
        try:
            for number in (int(signal.SIGINT), int(signal.SIGTERM)):
                previous[number] = signal.signal(number, note)
        except ValueError:  # not the main thread: Python delivers signals elsewhere
            pass
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
