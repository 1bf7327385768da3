"""The start of quantisation-aware training: a trained model simulates int8, its ranges from training pictures.

Fine-tuning then continues as any other (see inkmill.nn.fake_int8), and what it saves is scored with int8's rounding.
"""

from __future__ import annotations

import numpy as np
import torch

from inkmill.config.spec import Spec
from inkmill.data.loaders import LoadPlan, make_loader
from inkmill.data.sources import Subset
from inkmill.errors import DataError, InkmillError
from inkmill.nn.fake_int8 import measure
from inkmill.nn.simulate import is_simulated, layers_in_float, layers_in_int8, simulate_int8
from inkmill.tasks.base import Say
from inkmill.tasks.model import TaskModel, to_input
from inkmill.training.prepare import Prepared

BATCH = 32
CLOSE = 0.05
"""The largest difference folding may make, as a share of the largest feature; TF32's is smaller, a mistake's larger."""


def start_simulating(model: TaskModel, spec: Spec, prepared: Prepared, say: Say) -> None:
    """Let a model with trained weights simulate int8, in place, and measure its ranges.

    Args:
        model: on any device; in whichever mode it stays.
        spec: `quantize.calibration_images` pictures of the training set are read, without augmentation.
        prepared: the training set.
        say: prints one line.

    Raises:
        InkmillError: the backbone's batch norms cannot be folded.
        DataError: none of the pictures can be decoded.
    """
    was_training = model.training
    model.eval()
    fold_and_compare(model)
    pictures = _measure_ranges(model, spec, prepared)
    model.train(was_training)
    in_float = layers_in_float(model)
    say(
        f"int8 is simulated in {len(layers_in_int8(model))} layers, ranges of {pictures:,} training pictures; "
        f"in float stay {', '.join(in_float) if in_float else 'no convolutions and linear layers'}"
    )


@torch.no_grad()
def fold_and_compare(model: TaskModel) -> None:
    """Let a model in evaluation mode simulate int8, in place; see that without rounding it computes as before.

    Raises:
        InkmillError: it does not, for something besides a batch norm reads what its convolution gives.
    """
    if is_simulated(model):
        return
    spec, device = model.spec, next(model.parameters()).device
    shape = (2, spec.input_channel, spec.input_height, spec.input_width)
    images = torch.linspace(-1, 1, int(np.prod(shape)), device=device).view(shape)
    before = model.features(images)
    simulate_int8(model)
    measure(model, 1.0)
    after = model.features(images)
    measure(model, None)
    if not float((after - before).abs().max()) <= CLOSE * float(before.abs().max()):
        raise InkmillError(
            f"model.quantize: the batch norms of backbone {spec.backbone} cannot be folded into its convolutions; "
            "quantise the trained model with `inkmill quantize`"
        )


@torch.no_grad()
def _measure_ranges(model: TaskModel, spec: Spec, prepared: Prepared) -> int:
    """Set every range to the mean over batches of the largest magnitude; return how many pictures that took."""
    source, widths = prepared.train.source, prepared.train.bucket_widths
    count = min(spec.quantize.calibration_images, len(source))
    some = np.arange(count) * len(source) // count
    plan = LoadPlan(
        Subset(source, some),
        prepared.resize,
        batch_size=min(BATCH, spec.dataset.batch_size),
        shuffle=False,
        bucket_widths=None if widths is None else widths[some],
        on_bad_sample="skip",
        max_bad=1.0,
    )
    device = next(model.parameters()).device
    batches = pictures = 0
    with make_loader(plan, workers=0) as loader:
        for batch in loader:
            if not len(batch):
                continue
            batches, pictures = batches + 1, pictures + len(batch)
            measure(model, 1 / batches)
            model.probe(to_input(torch.from_numpy(np.array(batch.images)).to(device)))
    measure(model, None)
    if not pictures:
        raise DataError(f"{source.name}: none of {count} pictures can be decoded, and model.quantize measures ranges")
    return pictures
