"""TensorRT itself: from a graph that says its own precision to the bytes of an engine, through the public Python API.

Any of `tensorrt` (10 or later) and TensorRT for RTX will do; their names agree as far as they are used here. The former
compiles on the GPU that the engine is for; the latter compiles without one, for the GPUs that it knows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from inkmill.deploy.tensorrt.graph import EngineShapes
from inkmill.errors import InkmillError, MissingExtraError
from inkmill.files import explain, write_bytes_atomic

_PACKAGES = ("tensorrt", "tensorrt_rtx", "tensorrt_rtx_bindings")
OLDEST = 10
"""Major version. Earlier ones took the precision from a graph as an experiment only."""

Say = Callable[[str], None]
Progress = Callable[[int, int], None]
"""Takes (done, total)."""


@dataclass(frozen=True)
class Library:
    """An installed TensorRT.

    Attributes:
        module: its Python module.
        name: TensorRT or TensorRT for RTX.
        version: its own `__version__`.
        keeps_timings: whether it measures kernels when it compiles; RTX does so when the engine runs.
    """

    module: Any
    name: str
    version: str
    keeps_timings: bool


def load_tensorrt() -> Library:
    """Return the TensorRT of this machine, `tensorrt` before `tensorrt_rtx`.

    Raises:
        MissingExtraError: there is none.
        InkmillError: it is older than 10, or its libraries cannot be loaded.
    """
    for package in _PACKAGES:
        try:
            module = import_module(package)
        except ModuleNotFoundError:
            continue
        except (ImportError, OSError) as error:  # a shared library is missing
            raise InkmillError(f"the package {package} is installed and cannot be loaded ({error})") from error
        version = str(module.__version__)
        is_rtx = package != "tensorrt"
        if not is_rtx and int(version.partition(".")[0]) < OLDEST:
            raise InkmillError(f"engine needs TensorRT {OLDEST} or later, and {version} is installed; upgrade it")
        return Library(module, "TensorRT for RTX" if is_rtx else "TensorRT", version, not is_rtx)
    raise MissingExtraError("tensorrt", "tensorrt-cuda13", "engine")


@dataclass(frozen=True)
class BuildOptions:
    """What the spec says of a build.

    Attributes:
        workspace: in MiB; 0 leaves TensorRT's own bound.
        timing_cache: its file.
        verbose: whether all messages of TensorRT are printed, not only warnings and errors.
    """

    workspace: int = 0
    timing_cache: Path | None = None
    verbose: bool = False


def compile_engine(
    library: Library,
    model: Any,
    shapes: EngineShapes,
    options: BuildOptions,
    say: Say,
    progress: Progress | None = None,
) -> bytes:
    """Return the bytes of an engine.

    Args:
        library: what compiles.
        model: the onnx.ModelProto; each layer computes in the precision that its numbers have there.
        shapes: of its input.
        options: workspace, timing cache, verbosity.
        say: takes TensorRT's messages, one a line.
        progress: is called from time to time with the steps done and their total.

    Raises:
        InkmillError: TensorRT cannot start here, or refuses the graph or the build; with its own reason.
        OutputError: the timing cache cannot be written.
    """
    # 1. A builder: without a driver, or without a GPU where one is needed, this fails.
    trt = library.module
    listener = _Listener(trt, say, options.verbose, progress)
    try:
        builder = trt.Builder(listener.logger)
    except (TypeError, RuntimeError) as error:  # pybind11 says no more than that there is no object
        reason = listener.reason or str(error)
        raise InkmillError(
            f"{library.name} {library.version} cannot start here ({reason}): it compiles where the NVIDIA GPU is that "
            "the engine is for"
        ) from error

    # 2. The graph. Strongly typed: every layer computes in what its tensors say, and no flag overrides it.
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, listener.logger)
    if not parser.parse(model.SerializeToString()):
        problem = parser.get_error(0) if parser.num_errors else None
        where = f" at {problem.node_operator()} {problem.node_name()}: {_line(problem.desc())}" if problem else ""
        raise InkmillError(f"{library.name} {library.version} cannot read this graph{where or f' ({listener.reason})'}")

    # 3. Input shapes, memory, and kernels that were timed before.
    config = _config(library, builder, shapes, options)
    config.progress_monitor = listener.monitor
    timings = _timings(library, config, options.timing_cache, say)

    # 4. Minutes of work, during which TensorRT calls the listener.
    plan = builder.build_serialized_network(network, config)
    if listener.stopped is not None:
        raise listener.stopped
    if plan is None:
        raise InkmillError(f"{library.name} {library.version} made no engine: {listener.reason or 'it gave no reason'}")
    if timings is not None and options.timing_cache is not None:
        write_bytes_atomic(options.timing_cache, bytes(timings.serialize()))
    return bytes(plan)


def _config(library: Library, builder: Any, shapes: EngineShapes, options: BuildOptions) -> Any:
    trt = library.module
    config = builder.create_builder_config()
    profile = builder.create_optimization_profile()
    profile.set_shape(shapes.name, shapes.least, shapes.best, shapes.most)
    config.add_optimization_profile(profile)
    if options.workspace:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, options.workspace << 20)
    return config


def _timings(library: Library, config: Any, path: Path | None, say: Say) -> Any:
    """Return the timing cache that the build fills, None where there is to be none."""
    if path is None:
        return None
    if not library.keeps_timings:
        say(f"{library.name} measures no kernels when it compiles: {path} is neither read nor written")
        return None
    try:
        known = path.read_bytes() if path.exists() else b""
    except OSError as error:
        raise InkmillError(f"timing_cache={path}: cannot be read ({explain(error)})") from error
    cache = config.create_timing_cache(known)
    if cache is None or not config.set_timing_cache(cache, False):
        say(f"{path} is of another TensorRT or GPU: kernels are measured again")
        cache = config.create_timing_cache(b"")
        config.set_timing_cache(cache, False)
    return cache


class _Listener:
    """What TensorRT calls back while it works.

    An exception must not leave such a call: it would end the process on its way through C++. So it is kept in
    `stopped`, which ends the build, and raised after it.
    """

    def __init__(self, trt: Any, say: Say, verbose: bool, progress: Progress | None) -> None:
        self.stopped: BaseException | None = None
        self.reason = ""
        """The first error that TensorRT logged, in one line."""
        self._say, self._verbose, self._progress, self._bar = say, verbose, progress, _NestedProgress()
        self.logger, self.monitor = _logger(trt), _monitor(trt, self)
        self.logger.listener = self

    def hear(self, message: str, is_error: bool, is_trouble: bool) -> None:
        if is_error:
            self.reason = self.reason or _line(message)
        if self._verbose or is_trouble:
            self._guarded(lambda: self._say(message))

    def start(self, phase: str, parent: str | None, steps: int) -> None:
        self._guarded(lambda: self._bar.start(phase, parent, steps))

    def step(self, phase: str, done: int | None) -> bool:
        """Take the number of a step that is done, None for the last, and return whether to go on."""
        self._guarded(lambda: self._move(phase, done))
        return self.stopped is None

    def _move(self, phase: str, done: int | None) -> None:
        share = self._bar.done(phase, done)
        if self._progress is not None:
            self._progress(round(100 * share), 100)

    def _guarded(self, call: Callable[[], None]) -> None:
        try:
            call()
        except BaseException as error:  # Ctrl-C too
            self.stopped = self.stopped or error


class _NestedProgress:
    """How much of nested phases is done, as a share of the outermost."""

    def __init__(self) -> None:
        self._phases: dict[str, tuple[str | None, int]] = {}
        self._done: dict[str, int] = {}
        self._share = 0.0

    def start(self, phase: str, parent: str | None, steps: int) -> None:
        self._phases[phase], self._done[phase] = (parent, max(1, steps)), 0

    def done(self, phase: str, step: int | None) -> float:
        """Note a step of a phase as done, from 0, None for the last; return the share, 0..1, which never falls."""
        self._done[phase] = self._phases[phase][1] if step is None else step + 1
        share, at = 0.0, phase
        for _ in self._phases:  # no further up than there are phases
            parent, steps = self._phases[at]
            share = min(1.0, (self._done[at] + share) / steps)
            if parent not in self._phases:
                break
            at = parent
        self._share = max(self._share, share)
        return self._share


def _line(message: str) -> str:
    return " ".join(message.split())


@cache
def _logger(trt: Any) -> Any:
    """Return the one logger of this process: TensorRT keeps to the first that it was given while any builder lives."""
    severity = trt.ILogger.Severity

    class Logger(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.listener: _Listener | None = None

        def log(self, level: Any, message: str) -> None:
            if self.listener is not None:
                is_error = level in (severity.ERROR, severity.INTERNAL_ERROR)
                self.listener.hear(message, is_error, is_error or level == severity.WARNING)

    return Logger()


def _monitor(trt: Any, listener: _Listener) -> Any:
    class Monitor(trt.IProgressMonitor):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)

        def phase_start(self, phase: str, parent: str | None, steps: int) -> None:
            listener.start(phase, parent, steps)

        def step_complete(self, phase: str, step: int) -> bool:
            return listener.step(phase, step)

        def phase_finish(self, phase: str) -> None:
            listener.step(phase, None)

    return Monitor()
