"""CUDA graphs: all that a function queues on a GPU, recorded once and from then on started as one.

Started one by one, a thousand small kernels keep the CPU busy for longer than the GPU needs to run them. A graph starts
them together, but reads and writes the same addresses at each replay: so its inputs are copied into tensors of its own,
and it fits one shape of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

MOST_SHAPES = 64
"""Graphs of one function; what comes in still more shapes runs without."""

_WARMUP = 3  # runs before the recording: the first compiles, in the second libraries set themselves up

Tensors = tuple[Tensor, ...]


class GraphMemory:
    """The memory, and the stream of recording, of graphs that never run at the same time: they share both.

    Args:
        device: the CUDA device.
    """

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self.pool = torch.cuda.graph_pool_handle()
        self._functions: list[CapturedFunction] = []

    def share(self, function: CapturedFunction) -> None:
        """Take note of a function whose graphs lie here."""
        self._functions.append(function)

    def clear(self) -> None:
        """Give all graphs of all functions back, and their memory: it is one piece, free when the last of them is."""
        torch.cuda.synchronize()  # one may be running
        for function in self._functions:
            function.forget()
        self.pool = torch.cuda.graph_pool_handle()
        torch.cuda.empty_cache()


class CudaGraph:
    """Replays what `run` does as one CUDA graph, so that starting it costs the CPU next to nothing.

    A call waits on the GPU for the one before, on whatever stream that was.

    Args:
        run: from tensors to tensors, on the GPU alone, the same kernels whatever the values.
        inputs: for the recording; later ones must have their shapes and dtypes.
        device: the CUDA device.
        warmup: runs before the recording; 0 where `run` ran before and must not run for nothing.
        memory: shared with other graphs; by default the graph's own.
    """

    def __init__(
        self,
        run: Callable[..., Tensors],
        inputs: Tensors,
        device: torch.device,
        warmup: int = _WARMUP,
        memory: GraphMemory | None = None,
    ) -> None:
        self._device = device
        memory = memory or GraphMemory(device)
        # 1. Inputs of its own: a graph reads and writes the same addresses at each replay.
        self._inputs = tuple(tensor.to(device, copy=True) for tensor in inputs)
        self._free = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._graph = torch.cuda.CUDAGraph()
        # 2. Warm up on a side stream, for what compiles and allocates cannot be recorded.
        before = torch.cuda.current_stream(device)
        memory.stream.wait_stream(before)
        with torch.cuda.stream(memory.stream):
            for _ in range(warmup):
                run(*self._inputs)
        before.wait_stream(memory.stream)
        # 3. Record. Other threads, such as a loader's, go on using the GPU meanwhile.
        # The stream is named, for torch's own is of the device that the first graph of the process was made on.
        with torch.cuda.graph(self._graph, memory.pool, memory.stream, capture_error_mode="thread_local"):
            self._outputs = run(*self._inputs)

    def __call__(self, *inputs: Tensor) -> Tensors:
        """Run it, not waited for.

        Args:
            inputs: on any device; on the CPU in page-locked memory.

        Returns:
            Tensors of its own.
        """
        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(self._free)
        for inside, given in zip(self._inputs, inputs, strict=True):
            inside.copy_(given, non_blocking=True)
        self._graph.replay()
        outputs = tuple(output.clone() for output in self._outputs)
        self._free.record(stream)
        return outputs


class CapturedFunction:
    """A function on a GPU: called for the first times with inputs of some shapes it runs, from then on it is replayed.

    Nothing runs but what is called for, so the function may change what it likes: weights, say. Where it cannot be
    recorded it runs as it is from then on, and `note` gets one sentence.

    Args:
        run: see CudaGraph.
        device: the CUDA device.
        what: the function's name in the sentence.
        note: gets the sentence.
        memory: see CudaGraph.
        eager_calls: how many calls run before the recording.
    """

    def __init__(
        self,
        run: Callable[..., Tensors],
        device: torch.device,
        what: str,
        note: Callable[[str], Any],
        memory: GraphMemory | None = None,
        eager_calls: int = 2,
    ) -> None:
        self.run = run
        self._device, self._what, self._note = device, what, note
        self._memory = memory or GraphMemory(device)
        self._memory.share(self)
        self._eager_calls = eager_calls
        self._calls: dict[tuple[Any, ...], int] = {}
        self._graphs: dict[tuple[Any, ...], CudaGraph] = {}
        self._is_full = False
        self.failed = False

    def __call__(self, *inputs: Tensor) -> Tensors:
        """Return what the function returns; tensors of their own."""
        return self.after(self._eager_calls, *inputs)

    def after(self, eager_calls: int, *inputs: Tensor) -> Tensors:
        """The same for inputs of shapes that are recorded only once they have come so many times."""
        if self.failed:
            return self.run(*inputs)
        shapes = tuple((tensor.shape, tensor.dtype) for tensor in inputs)
        graph = self._graphs.get(shapes)
        if graph is None:
            calls = self._calls[shapes] = self._calls.get(shapes, 0) + 1
            if calls <= eager_calls or not self._record(shapes, inputs):
                return self.run(*inputs)
            graph = self._graphs[shapes]
        return graph(*inputs)

    @property
    def recorded(self) -> list[list[torch.Size]]:
        """For each graph the shapes of its inputs."""
        return [[shape for shape, _ in shapes] for shapes in self._graphs]

    def forget(self) -> None:
        """Give all graphs back: the next calls run, and are recorded again."""
        self._graphs.clear()
        self._calls.clear()

    def give_up(self) -> None:
        """Record nothing from now on, and give the memory back."""
        self.failed = True
        self._memory.clear()

    def _record(self, shapes: tuple[Any, ...], inputs: Tensors) -> bool:
        if len(self._graphs) >= MOST_SHAPES:
            if not self._is_full:
                self._note(f"{self._what} comes in more than {MOST_SHAPES} shapes: the others are not captured")
            self._is_full = True
            return False
        try:
            self._graphs[shapes] = CudaGraph(self.run, inputs, self._device, 0, self._memory)
        except Exception as error:  # CUDA's and a network's errors share no base
            self.give_up()
            _renew_generator(self._device)
            # The error on the way out of the recording hides the one that caused it.
            reason = str(error.__context__ or error).strip().partition("\n")[0]
            self._note(f"{self._what} is not captured as a CUDA graph, so Python starts each kernel: {reason}")
            return False
        return True


def _renew_generator(device: torch.device) -> None:
    """Give the device's generator of random numbers a state that knows of no recording: it is left in a failed one."""
    generator = torch.cuda.default_generators[device.index or 0]
    fresh = torch.Generator(device)
    fresh.set_state(generator.get_state())
    generator.graphsafe_set_state(fresh)
