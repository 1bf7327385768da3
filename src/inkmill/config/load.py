"""From spec file, preset and `a.b=c` overrides to a checked Spec; a mistake is one sentence that says where it stands.

Later wins: schema defaults, the preset, the file, the overrides. Sections are merged, lists are replaced.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from inkmill.config.interpolate import interpolate
from inkmill.config.keys import field_at
from inkmill.config.problems import translate
from inkmill.config.spec import Spec
from inkmill.config.yaml_file import MAX_BYTES, KeyPath, dotted, parse_yaml
from inkmill.crypt import SETTING
from inkmill.errors import ConfigError
from inkmill.files import explain
from inkmill.registry import suggest

PRESETS = Path(__file__).parent / "presets"
_OVERRIDE = re.compile(r"([A-Za-z_]\w*(?:\.\w+)*)=(.*)", re.DOTALL)
_TO_BE_GIVEN = ("??", "???")

Override = str | tuple[str, Any]
"""`a.b=c` as typed in a shell, or (key, value) from Python, taken as it is."""


def load_spec(file: Path | str | None = None, overrides: Sequence[Override] = (), preset: str | None = None) -> Spec:
    """Return the Spec of a file, a shipped preset and overrides, each optional.

    Args:
        file: a YAML file, or the name of a preset where no such file exists.
        overrides: changes on top; `a.b=c` is typed as YAML, except that where text is expected it stays text.
        preset: a shipped preset below the file.

    Raises:
        ConfigError: no such file; not YAML; an unknown key, a wrong type or a value out of range.
    """
    merger = _Merger()
    if preset is not None:
        merger.add_file(_preset(preset))
    if file is not None:
        merger.add_file(_file_or_preset(file))
    for override in overrides:
        merger.add_override(override)
    return merger.spec()


_BY_POSITION = {
    "evaluate.checkpoint": "MODEL PATH...",
    "prune.checkpoint": "MODEL",
    "export.checkpoint": "MODEL",
    "quantize.model_path": "MODEL",
    "gen_trt_engine.onnx_file": "MODEL",
    "dataset_convert.input_img_dir": "SOURCE DESTINATION",
}
"""What may stand on the command line instead of a key."""


def require(spec: Spec, key: str, verb: str) -> Any:
    """Return the value of a dotted key that `verb` cannot do without.

    Raises:
        ConfigError: it is not given (absent, `??`, null, or empty).
    """
    value: Any = spec
    for part in key.split("."):
        value = getattr(value, part)
    if value is None or value == "" or value == []:
        by_hand = f"`inkmill {verb} {_BY_POSITION[key]}`, " if key in _BY_POSITION else ""
        raise ConfigError(f"{verb} needs {key}: give {by_hand}{key}=VALUE, or the key in the spec file (-e FILE)")
    return value


def preset_names() -> list[str]:
    """Return the names of the shipped presets, sorted."""
    return sorted(path.stem for path in PRESETS.glob("*.yaml"))


def split_arguments(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split a command line into positional arguments and `a.b=c` overrides; `./a=b` is a path."""
    overrides = [argument for argument in arguments if _OVERRIDE.fullmatch(argument)]
    return [argument for argument in arguments if not _OVERRIDE.fullmatch(argument)], overrides


class _Merger:
    """Collects values and remembers where each was written."""

    def __init__(self) -> None:
        self.data: dict[str, Any] = {}
        self.origins: dict[KeyPath, str] = {}

    def add_file(self, file: Path) -> None:
        data, lines = parse_yaml(_read(file), str(file))
        if data is None:
            return
        if not isinstance(data, dict):
            raise ConfigError(f"{file}: expected keys such as 'train:' and 'dataset:', not {type(data).__name__} data")
        self._merge(self.data, data)
        self.origins.update({path: f"{file}:{line}" for path, line in lines.items() if path})

    def add_override(self, override: Override) -> None:
        path, nested = _parse_override(override)
        for part in reversed(path):
            nested = {part: nested}
        self._merge(self.data, nested)
        for known in [known for known in self.origins if known[: len(path)] == path]:
            del self.origins[known]
        self.origins[path] = ""  # the key says enough: there is no line to name

    def _merge(self, below: dict[str, Any], above: dict[str, Any]) -> None:
        for key, value in above.items():
            if isinstance(value, dict) and isinstance(below.get(key), dict):
                self._merge(below[key], value)
            else:
                below[key] = value

    def spec(self) -> Spec:
        to_be_given: set[KeyPath] = set()
        data = _without_marks(self.data, (), to_be_given)
        data = interpolate(data, Spec().model_dump(), self.origins)
        try:
            return Spec.model_validate(data)
        except ValidationError as error:
            raise translate(error, data, self.origins, to_be_given) from error


def _without_marks(value: Any, path: KeyPath, found: set[KeyPath]) -> Any:
    """Return `value` with None for every `??`, TAO's mark for "must be given"; whether it is missed, the verb knows."""
    if isinstance(value, dict):
        return {key: _without_marks(item, (*path, key), found) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_marks(item, (*path, position), found) for position, item in enumerate(value)]
    if isinstance(value, str) and value in _TO_BE_GIVEN:
        found.add(path)
        return None
    return value


def _parse_override(override: Override) -> tuple[KeyPath, Any]:
    if not isinstance(override, str):
        return tuple(override[0].split(".")), deepcopy(override[1])
    match = _OVERRIDE.fullmatch(override)
    if match is None:
        raise ConfigError(f"{override!r} is not an override; expected KEY=VALUE, for example train.num_epochs=20")
    path: KeyPath = tuple(match[1].split("."))
    if path == (SETTING,) and not match[2].strip():  # of a shell's variable that is not set, most likely
        raise ConfigError(f"{SETTING}= is empty, and files would be written plain: give a key, or leave it out")
    takes_text = getattr(field_at(path), "annotation", None) in (str, str | None)
    try:
        value, _ = parse_yaml(match[2], dotted(path))
    except ConfigError as error:
        if not takes_text:
            raise ConfigError(f"{override}: what follows the '=' is not valid YAML; put text into quotes") from error
        value = match[2]
    # A run called 2024 and a pattern such as [0-9]+ are text where text is expected, whatever YAML makes of them.
    return path, match[2] if takes_text and not isinstance(value, str | None) else value


def _file_or_preset(file: Path | str) -> Path:
    path = Path(file)
    if isinstance(file, Path) or path.suffix or len(path.parts) > 1 or path.is_file():
        return path
    return _preset(file)


def _preset(name: str) -> Path:
    if name not in preset_names():
        hint = suggest(name, preset_names())
        raise ConfigError(
            f"there is neither a spec file nor a preset {name!r}{hint}; presets: {', '.join(preset_names())}"
        )
    return PRESETS / f"{name}.yaml"


def _read(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"cannot read the spec: {explain(error)}") from error
    if len(data) > MAX_BYTES:
        raise ConfigError(f"{file}: larger than {MAX_BYTES:,} bytes, which no spec is; give a YAML file after -e")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{file}:{line}: not UTF-8; save the spec as UTF-8 text") from error
