"""Compiling a network in a process of its own, while training goes on in this one.

torch keeps what it compiles in files, by machine, versions and network. So another process compiles the same network
for the same batches; the training process then compiles it too, and finds nearly all of it there. A minute becomes
seconds, and until then no image waits.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Collection
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from inkmill.config.spec import Spec
from inkmill.errors import first_line
from inkmill.kernels.graph import MOST_SHAPES
from inkmill.modelfile.header import ModelHeader
from inkmill.nn.narrow import cut, find_cuts
from inkmill.tasks.base import Say, Task
from inkmill.tasks.model import TaskModel, to_input

WORTH_S = 120.0
"""How much longer a run must take, for each shape of batch, for its network to be compiled."""
_LOOKS = 3  # before the speed is known
_ROOM = 1 << 30  # bytes of another process on the GPU, besides what the batch needs

Shape = tuple[int, ...]


class AutoCompile:
    """Decides when a run compiles its network: once another process has done so, where the run is long enough.

    Args:
        spec: the resolved spec.
        task: settled.
        model: the network, on its GPU.
        note: prints one line.
    """

    def __init__(self, spec: Spec, task: Task, model: TaskModel, note: Say) -> None:
        self._spec, self._task, self._model, self._note = spec, task, model, note
        self._process: CompileAside | None = None
        self._looks, self._shapes, self._before = 0, 0, (perf_counter(), 0)

    def look(self, steps_left: int, shapes: Collection[Shape]) -> bool:
        """Return whether the network is to be compiled now; asked every few steps, until it says so.

        Args:
            steps_left: of the run.
            shapes: of the full batches' images so far, (B, H, W, C).
        """
        now, (then, more) = perf_counter(), self._before
        self._looks, self._before = self._looks + 1, (now, steps_left)
        grown, self._shapes = len(shapes) > self._shapes, len(shapes)
        if self._process is None:
            seconds_left = (now - then) / max(1, more - steps_left) * steps_left
            # Shapes that come later are compiled by the run itself, which waits for them.
            if self._looks > _LOOKS and shapes and not grown and seconds_left > WORTH_S * len(shapes):
                self._start(shapes)
            return False
        if not self._process.is_over:
            return False
        failure = self._process.failure
        self._process.close()
        if failure is not None:
            self._note(f"the backbone is not compiled: {failure}")
            self._looks = -sys.maxsize
            self._process = None
        return failure is None

    def close(self) -> None:
        """End the other process."""
        if self._process is not None:
            self._process.close()

    def _start(self, shapes: Collection[Shape]) -> None:
        device = next(self._model.parameters()).device
        needs = torch.cuda.max_memory_allocated(device) + _ROOM
        free = torch.cuda.mem_get_info(device)[0]
        if needs > free:
            self._looks = -sys.maxsize
            self._note(
                f"the backbone is not compiled: that needs {needs / 2**30:.1f} GiB on the GPU beside training, and "
                f"{free / 2**30:.1f} are free; train.compile=true compiles it before the first step"
            )
            return
        self._process = CompileAside(self._spec, self._task, self._model, shapes)
        self._note("the backbone is being compiled by another process, while training goes on")


class CompileAside:
    """The process that compiles.

    Args:
        spec: the resolved spec.
        task: settled.
        model: the network, on its GPU.
        shapes: of the batches' images, (B, H, W, C).
    """

    def __init__(self, spec: Spec, task: Task, model: TaskModel, shapes: Collection[Shape]) -> None:
        given = {
            "spec": spec.model_dump(mode="json"),
            "header": ModelHeader.of(task).to_json(),
            "sizes": {name: list(tensor.shape) for name, tensor in model.state_dict().items()},
            "shapes": [list(shape) for shape in shapes],
            "device": next(model.parameters()).device.index or 0,
        }
        self._said = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 - closed in `close`
        alone = {name: value for name, value in os.environ.items() if name not in _OF_RANKS}
        command = [sys.executable, "-m", __name__]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=self._said, stderr=self._said, env=alone, text=True
        )
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(given))
        self._process.stdin.close()

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self._process.poll() is not None

    @property
    def failure(self) -> str | None:
        """Why it ended without having compiled, None where it did or goes on."""
        if self._process.poll() in (0, None):
            return None
        self._said.seek(0)
        lines = [line.strip() for line in self._said if line.strip()]
        return lines[-1] if lines else f"its process ended with {self._process.returncode}"

    def close(self) -> None:
        """End it."""
        if not self.is_over:
            self._process.terminate()
            self._process.wait()
        self._said.close()


_OF_RANKS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK")


def main() -> None:
    """Compile what standard input describes."""
    from inkmill.training.run import launch

    given = json.load(sys.stdin)
    spec = Spec.model_validate(given["spec"])
    settings = spec.train
    settings.num_gpus, settings.num_nodes, settings.gpu_ids = 1, 1, [given["device"]]
    # 1. The network as it is there: perhaps narrower than its spec says, for it was pruned.
    fabric, _ = launch(settings)
    header = ModelHeader.from_json(given["header"], "standard input")
    model = header.open_task().build(header.model.model_copy(update={"backbone_pretrained": False}))
    sizes = {name: torch.empty(size, device="meta") for name, size in given["sizes"].items()}
    cut(model, find_cuts(model.state_dict(), sizes))
    if settings.channels_last:
        model = model.to(memory_format=torch.channels_last)
    model = model.to(fabric.device).train()
    # 2. Forward and backward once for each shape, in the step's precision.
    model.backbone.compile(dynamic=False)
    torch._dynamo.config.recompile_limit = MOST_SHAPES
    precision = fabric._precision
    for shape in given["shapes"]:
        images = torch.zeros(shape, dtype=torch.uint8, device=fabric.device)
        inputs = precision.convert_input(to_input(images))
        with precision.forward_context():
            features: Any = model.features(inputs)
        maps = [features] if isinstance(features, Tensor) else list(features)
        torch.stack([one.float().sum() for one in maps]).sum().backward()  # type: ignore[no-untyped-call]
    if fabric.device.type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    try:
        main()
    except Exception as error:  # a compiler's errors share no base
        sys.exit(f"{type(error).__name__}: {first_line(error)}")
