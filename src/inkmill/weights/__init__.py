"""Trained models that the package carries, so that an installed inkmill reads at once and offline.

`NAME.onnx` is a model file like any other of `export` or `quantize`; `NAME.md` is its card: what it was trained on,
under which licences, and how well it reads.
"""

from __future__ import annotations

from pathlib import Path

from inkmill.errors import InkmillError

FOLDER = Path(__file__).parent
NAMES = ("reader", "detector")
"""What may be there."""
MAX_BYTES = 12 << 20
"""Largest model file in the package."""


def path(name: str) -> Path:
    """Return the file of a packaged model.

    Args:
        name: one of `NAMES`.

    Raises:
        InkmillError: this installation carries none.
    """
    file = FOLDER / f"{name}.onnx"
    if not file.is_file():
        raise InkmillError(
            f"this inkmill carries no {name} ({file} is not there): give a model file, such as the "
            "results/train/best_accuracy.safetensors of `inkmill train`"
        )
    return file
