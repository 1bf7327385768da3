"""The ops of an augmentation, as data: one small class for each, which says what a spec can set and within what ranges.

A spec lists them in YAML, `{op: rotate, p: 0.5, degrees: 5}`. A range is `[low, high]`; where a quantity has two
sides (an angle, a shift) a single number x means [-x, x], elsewhere it means that number always. Lengths are shares of
the image's height or width, so that a spec means the same at any input size; brightness is in 0..255.

How to add an op
================
An op that is made of what there is (a matrix in space or of colour, waves, blur, noise, rectangles) takes two files;
all engines, the polygons and the tests of parity follow by themselves:

1. `ops.py`: a class with its ranges, registered under its name.
2. `sampling.py`: one function, registered with the part that it writes to and how many random numbers it uses.
3. A row in docs/augmentation.md, and `python docs/pictures/augmentation.py` for the picture.

An op that does something new to pixels takes a pass of its own, in these files as well:

4. `params.py`: a field and its columns in `ParamLayout`; their place among the columns is the place of the pass.
   `sampling.py`: its numbers in `ParamSampler.columns`, its field in `layout_of`.
5. `cpu.py`: the pass with OpenCV, and its entry in `_PASSES`.
6. `torch_passes.py`: the pass in torch, in `run_passes`; if it is slow and most images do not need it, its name in
   `params.SUBSET_PASSES` has it run on a block of the images that do.
7. For DALI's own augmentation, `data/loaders/dali/graph.py` and `inputs.py`.

`tests/data/augment/test_engines.py` compares the engines on every registered op.
Random numbers depend on an op's place in the spec, not in the registry: a new op changes no images of existing specs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BeforeValidator, Field, ValidationError

from inkmill.config.base import Section
from inkmill.config.dataset import AugmentationSpec
from inkmill.errors import ConfigError
from inkmill.registry import Registry, suggest

PRESETS = Path(__file__).parent / "presets"

OPS: Registry[type[Op]] = Registry("augmentation op")


def _limits(low: float, high: float, *, two_sided: bool = False) -> BeforeValidator:
    """Return the check of a range [a, b] with low <= a <= b <= high; a single number is allowed for both ends."""

    def check(value: Any) -> Range:
        if isinstance(value, (int, float)):
            value = (-abs(value), abs(value)) if two_sided else (value, value)
        numbers = isinstance(value, (list, tuple)) and all(isinstance(end, (int, float)) for end in value)
        if not numbers or len(value) != 2 or not low <= value[0] <= value[1] <= high:
            raise ValueError(f"expected a range [from, to] between {low:g} and {high:g}, or one number")
        return float(value[0]), float(value[1])

    return BeforeValidator(check)


Range = tuple[float, float]


class Op(Section):
    """One op."""

    p: float = Field(1.0, ge=0, le=1)
    """Probability that an image gets this op."""


@OPS.register("shrink")
class Shrink(Op):
    """Lose resolution, as small and distant text does: made smaller and as large again, each with a random filter."""

    factor: Annotated[Range, _limits(0.01, 1)] = (0.1, 1)
    """Of the size in between, the same for both axes; 1 changes nothing."""
    height: Annotated[Range, _limits(1, 4096)] | None = None
    """Instead of a factor: the height in between, in pixels, as many from each octave; from the image's own on, nothing
    is lost. Photographs of words have a height of 8 to 100 pixels."""


@OPS.register("rotate")
class Rotate(Op):
    """Turn about the centre, to either side."""

    degrees: Annotated[Range, _limits(-360, 360, two_sided=True)] = (-5, 5)
    """Angle in degrees; positive turns counter-clockwise."""


@OPS.register("shear")
class Shear(Op):
    """Slant, as italic type does (x), or climb (y)."""

    degrees_x: Annotated[Range, _limits(-60, 60, two_sided=True)] = (-10, 10)
    """Slant of vertical strokes in degrees."""
    degrees_y: Annotated[Range, _limits(-60, 60, two_sided=True)] = (0, 0)
    """Slant of the text line in degrees."""


@OPS.register("scale")
class Scale(Op):
    """Make larger or smaller about the centre."""

    factor: Annotated[Range, _limits(0.1, 10)] = (0.9, 1.1)
    """Factor of the size; below 1 the text shrinks and the border is repeated around it."""
    keep_ratio: bool = True
    """Sample one factor for both axes, or one for each."""


@OPS.register("shift")
class Shift(Op):
    """Move."""

    x: Annotated[Range, _limits(-1, 1, two_sided=True)] = (-0.05, 0.05)
    """Displacement to the right as a share of the width."""
    y: Annotated[Range, _limits(-1, 1, two_sided=True)] = (-0.05, 0.05)
    """Displacement down as a share of the height."""


@OPS.register("perspective")
class Perspective(Op):
    """Look at the text from the side or from above or below: one end comes nearer."""

    x: Annotated[Range, _limits(-0.5, 0.5, two_sided=True)] = (-0.2, 0.2)
    """How much nearer the right end is than the left: 0.2 is 10 % larger there and 10 % smaller at the other."""
    y: Annotated[Range, _limits(-0.5, 0.5, two_sided=True)] = (-0.2, 0.2)
    """The same for bottom and top."""


@OPS.register("flip")
class Flip(Op):
    """Mirror; for classification and detection, hardly ever for recognition."""

    axis: Literal["horizontal", "vertical"] = "horizontal"
    """Horizontal swaps left and right."""


@OPS.register("random_resized_crop")
class RandomResizedCrop(Op):
    """Show a part of the picture, stretched to the whole input (Szegedy et al. 2015); for classification."""

    area: Annotated[Range, _limits(0.01, 1)] = (0.08, 1)
    """Area of the part, as a share of the picture's."""
    aspect: Annotated[Range, _limits(0.1, 10)] = (3 / 4, 4 / 3)
    """Width over height of the part beside the picture's own, drawn evenly in its logarithm; what would reach over the
    picture is cut to it."""


@OPS.register("crop")
class Crop(Op):
    """Show a part of the picture, enlarged or shrunk by one factor for both sides; for detection, on whole pages.

    Of some places the one is taken that cuts through the fewest texts (the aim of EAST's crop, Zhou et al. 2017). An
    image that does not get it is shown whole.
    """

    scale: Annotated[Range, _limits(0.1, 10)] = (0.3, 2)
    """Factor of the size beside that at which the model reads, drawn evenly in its logarithm."""
    about_text: float = Field(0.9, ge=0, le=1)
    """Probability that the part is to hold a text, where the picture has one."""
    tries: int = Field(16, ge=1, le=64)
    """Places of which the best one is taken; 1 lets any text be cut."""


@OPS.register("curve")
class Curve(Op):
    """Bend the text line into a wave or an arc."""

    amplitude: Annotated[Range, _limits(0, 0.5)] = (0.05, 0.15)
    """Height of the bend as a share of the height."""
    cycles: Annotated[Range, _limits(0, 2)] = (0.5, 1)
    """Waves over the width; half a wave is an arc."""


@OPS.register("elastic")
class Elastic(Op):
    """Distort locally, as hand-writing and crumpled paper do, by three smooth waves."""

    amplitude: Annotated[Range, _limits(0, 0.1)] = (0.01, 0.04)
    """Largest displacement of a point, as a share of the height."""
    wavelength: Annotated[Range, _limits(1, 20)] = (1, 3)
    """Length of a wave as a share of the height; at least 1, so that the image never folds."""


@OPS.register("brightness")
class Brightness(Op):
    """Multiply all colours."""

    factor: Annotated[Range, _limits(0, 5)] = (0.8, 1.2)
    """1 changes nothing."""


@OPS.register("contrast")
class Contrast(Op):
    """Move all colours away from, or towards, mid-gray (127.5)."""

    factor: Annotated[Range, _limits(0, 5)] = (0.8, 1.2)
    """1 changes nothing, 0 leaves gray."""


@OPS.register("saturation")
class Saturation(Op):
    """Make colours stronger or weaker; nothing to a gray image."""

    factor: Annotated[Range, _limits(0, 5)] = (0.8, 1.2)
    """1 changes nothing, 0 leaves gray."""


@OPS.register("hue")
class Hue(Op):
    """Turn the colour circle (in YIQ, luma kept); nothing to a gray image."""

    degrees: Annotated[Range, _limits(-180, 180, two_sided=True)] = (-10, 10)
    """Angle in degrees."""


@OPS.register("invert")
class Invert(Op):
    """Swap dark and light."""

    p: float = Field(0.5, ge=0, le=1)
    """Probability that an image gets this op."""


@OPS.register("gray")
class Gray(Op):
    """Take the colour away."""

    p: float = Field(0.1, ge=0, le=1)
    """Probability that an image gets this op."""


@OPS.register("blur")
class Blur(Op):
    """Gaussian blur."""

    sigma: Annotated[Range, _limits(0, 16)] = (0.3, 1.0)
    """Standard deviation in pixels of the model's input."""
    choices: list[Annotated[float, Field(ge=0, le=16)]] = Field(default_factory=list)
    """Take one of these instead of a number from the range."""

    @property
    def largest(self) -> float:
        """The largest sigma that can be sampled."""
        return max(self.choices, default=self.sigma[1])


@OPS.register("motion_blur")
class MotionBlur(Op):
    """Blur along a straight line in any direction, as a moving camera does."""

    length: Annotated[Range, _limits(0, 32)] = (2, 8)
    """Length of the line in pixels of the model's input."""


@OPS.register("illumination")
class Illumination(Op):
    """Light that comes from one side: brightness rises linearly across the image, in any direction."""

    strength: Annotated[Range, _limits(0, 1)] = (0.1, 0.5)
    """Brightness is multiplied by 1 + this in the corner that gets most light, and by 1 - this in the opposite one."""


@OPS.register("noise")
class Noise(Op):
    """Gaussian noise, independent in each pixel and channel."""

    std: Annotated[Range, _limits(0, 128)] = (0, 10)
    """Standard deviation, of 255."""


@OPS.register("jpeg")
class Jpeg(Op):
    """JPEG compression artefacts."""

    quality: Annotated[Range, _limits(1, 100)] = (30, 90)
    """JPEG quality as in libjpeg."""


@OPS.register("cutout")
class Cutout(Op):
    """Paint rectangles of one shade over the image (Random Erasing, Zhong et al. 2017)."""

    count: int = Field(1, ge=1, le=8)
    """How many."""
    size: Annotated[Range, _limits(0, 1)] = (0.1, 0.3)
    """Length of each side as a share of the height."""
    shade: Annotated[Range, _limits(0, 255)] = (0, 255)
    """Shade of gray."""


@OPS.register("group")
class Group(Op):
    """Ops that happen together or not at all; inside, each still has its own p."""

    ops: list[dict[str, Any]]
    """The ops."""


def parse_ops(entries: Iterable[Mapping[str, Any]], where: str = "augmentation.ops") -> list[Op]:
    """Turn a spec's list of dicts into ops.

    Raises:
        ConfigError: an unknown op, key or value; the message names the entry and the nearest known name.
    """
    return [_parse_op(entry, f"{where}[{position}]") for position, entry in enumerate(entries)]


def _parse_op(entry: Any, where: str) -> Op:
    if not isinstance(entry, Mapping) or not isinstance(entry.get("op"), str):
        raise ConfigError(f"{where}: expected an op such as {{op: rotate, p: 0.5, degrees: 5}}, got {entry!r}")
    values = {key: value for key, value in entry.items() if key != "op"}
    try:
        op = OPS.get(entry["op"])(**values)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    except ValidationError as error:
        raise ConfigError(f"{where} ({entry['op']}): {_first_reason(error, OPS.get(entry['op']))}") from None
    if isinstance(op, Group):
        parse_ops(op.ops, f"{where}.ops")
    return op


def _first_reason(error: ValidationError, op: type[Op]) -> str:
    first = error.errors(include_url=False)[0]
    name = str(first["loc"][0]) if first["loc"] else ""
    if first["type"] == "extra_forbidden":
        return f"unknown key {name!r}{suggest(name, op.model_fields)}; known: {', '.join(op.model_fields)}"
    reason = first["msg"].removeprefix("Value error, ")
    return f"{name}={first['input']!r}: {reason[0].lower()}{reason[1:]}"


def preset_names() -> list[str]:
    """Return the names of the shipped presets."""
    return sorted(path.stem for path in PRESETS.glob("*.yaml"))


def load_preset(name: str) -> list[Op]:
    """Return the ops of a shipped preset.

    Raises:
        ConfigError: no preset of that name.
    """
    if name not in preset_names():
        hint = suggest(name, preset_names())
        raise ConfigError(f"unknown augmentation preset {name!r}{hint}; known: {', '.join(preset_names())}")
    entries = yaml.safe_load((PRESETS / f"{name}.yaml").read_text(encoding="utf-8"))
    return parse_ops(entries, f"preset {name}")


def ops_of(spec: AugmentationSpec) -> list[Op]:
    """Return all ops of a spec in their order: TAO's keys, the preset's, its own list.

    Raises:
        ConfigError: see `parse_ops` and `load_preset`.
    """
    ops = _tao_ops(spec)
    if spec.preset:
        ops += load_preset(spec.preset)
    return ops + parse_ops(spec.ops)


def _tao_ops(spec: AugmentationSpec) -> list[Op]:
    """Turn TAO's keys into ops; unlike TAO's, the rotation goes both ways."""
    if spec.aug_prob == 0:
        return []
    inner: list[dict[str, Any]] = [
        {"op": "invert", "p": spec.reverse_color_prob},
        {"op": "rotate", "p": spec.rotate_prob, "degrees": spec.max_rotation_degree},
    ]
    if spec.gaussian_radius_list:
        inner.append({"op": "blur", "p": spec.blur_prob, "choices": list(spec.gaussian_radius_list)})
    return parse_ops([{"op": "group", "p": spec.aug_prob, "ops": inner}], "augmentation")
