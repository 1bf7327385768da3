"""The DALI loader on a GPU: the samples of every other loader, their pixels within the tolerances of docs/dali.md."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

import cv2
import numpy as np
import pytest
from captcha_source import CaptchaSource

from inkmill.config.dataset import AugmentationSpec
from inkmill.data.augment import Augmentation, apply_cv
from inkmill.data.loaders import LoadPlan, make_loader
from inkmill.data.pipeline.decode import decode
from inkmill.data.pipeline.resize import Resize

torch = pytest.importorskip("torch")
pytest.importorskip("nvidia.dali")

from inkmill.data.augment.ops import parse_ops  # noqa: E402
from inkmill.data.augment.torch_passes import apply_torch  # noqa: E402
from inkmill.data.loaders.dali.loader import DaliLoader  # noqa: E402

pytestmark = [
    pytest.mark.dali,
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

PLACEMENTS = [("cpu", "cpu"), ("cpu", "dali"), ("mixed", "dali")]  # decode_on, augment_on
STRONG = Augmentation.from_spec(AugmentationSpec(preset="scene_text"))

# op -> its values; largest mean and largest difference from OpenCV on the GPU, of 255
OPS = [
    ({"op": "rotate", "degrees": [-15, 15]}, 0.5, 16),
    ({"op": "perspective", "p": 0.7}, 0.5, 16),
    ({"op": "curve", "p": 0.5}, 0.5, 16),
    ({"op": "elastic", "p": 0.5}, 0.5, 16),
    ({"op": "contrast", "p": 0.7, "factor": [0.5, 1.5]}, 0.5, 1),
    ({"op": "hue", "p": 0.7, "degrees": [-90, 90]}, 0.5, 1),
    ({"op": "invert", "p": 0.5}, 0, 0),
    ({"op": "blur", "p": 0.5, "sigma": [0.3, 4]}, 0.5, 2),
    ({"op": "noise", "p": 0.5, "std": [2, 25]}, 0.5, 1),
    ({"op": "jpeg", "p": 0.5, "quality": [20, 95]}, 1.5, 64),
    ({"op": "cutout", "p": 0.6, "count": 3}, 0, 0),
]


@pytest.fixture(scope="module")
def plan(captcha_plan: Callable[..., LoadPlan], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., LoadPlan]:
    """Like captcha_plan, of opaque JPEG files, which NVIDIA's decoder takes."""
    folder = tmp_path_factory.mktemp("jpeg")
    captchas = captcha_plan().source
    (folder / "images").mkdir()
    for index, name in enumerate(captchas.names):
        image = decode(captchas.get(index).image, 3)[:, :, ::-1]
        (folder / name).write_bytes(cv2.imencode(".jpg", image)[1].tobytes())
    return lambda **changes: LoadPlan(
        CaptchaSource(folder, captchas.names), **({"resize": Resize(32, 64, 3), "batch_size": 8, "seed": 3} | changes)
    )


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("op", "mean", "largest"), OPS, ids=[op["op"] for op, _, _ in OPS])
def test_an_op_shows_what_opencv_shows(
    captcha_plan: Callable[..., LoadPlan],
    apply_dali: Callable[..., np.ndarray],
    channels: Any,
    op: dict[str, Any],
    mean: float,
    largest: int,
) -> None:
    images = next(iter(make_loader(captcha_plan(resize=Resize(32, 128, channels), batch_size=64)))).images
    table = Augmentation(parse_ops([op])).sample(3, 5, np.arange(64), 32, 128)
    difference = np.abs(apply_dali(images, table, "gpu").astype(int) - apply_cv(images, table))
    assert difference.mean() <= mean
    assert difference.max() <= largest


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("mode", ["stretch", "pad", "height"])
@pytest.mark.parametrize(("decode_on", "augment_on"), PLACEMENTS)
def test_fitted_pictures_are_those_of_opencv(
    plan: Callable[..., LoadPlan], decode_on: Any, augment_on: Any, mode: Any, channels: Any
) -> None:
    inline = make_loader(plan(resize=Resize(32, 160, channels, mode)))
    with DaliLoader(inline.plan, 4, augment_on, "cuda:0", decode_on) as dali:
        for batch, expected in zip(dali, inline, strict=True):
            assert batch.images.device == torch.device("cuda:0")
            assert (batch.keys, batch.texts) == (expected.keys, expected.texts)
            difference = np.abs(batch.images.cpu().numpy().astype(int) - expected.images)
            assert difference.mean() < (0.5 if decode_on == "mixed" else 0.25)
            assert difference.max() <= (8 if decode_on == "mixed" else 2)


@pytest.mark.parametrize(("decode_on", "augment_on"), PLACEMENTS)
def test_resume_and_epochs_are_exact(
    plan: Callable[..., LoadPlan], snapshot: Callable[..., Any], decode_on: Any, augment_on: Any
) -> None:
    def written(batches: Any) -> Any:
        return snapshot([type(b)(b.images.cpu(), b.widths, b.targets, b.keys, b.index) for b in batches])

    with DaliLoader(plan(augmentation=STRONG), 4, augment_on, "cuda:0", decode_on) as dali:
        epochs = [list(dali) for _ in range(3)]  # kept, so that memory used again would show
        whole = [written(epoch) for epoch in epochs]
        for epoch in whole:
            assert sorted(key for batch in epoch for key in batch[0]) == sorted(dali.plan.source.names)
        dali.set_epoch(1)
        list(islice(dali, 4))
        state = dali.state_dict()
        list(islice(dali, 2))
        dali.load_state_dict(state)
        assert written(dali) == whole[1][4:]


@pytest.mark.parametrize("decode_on", ["cpu", "mixed"])
def test_the_torch_engine_augments_what_dali_decoded(plan: Callable[..., LoadPlan], decode_on: Any) -> None:
    wanted = plan(augmentation=STRONG)
    with DaliLoader(wanted, 8, "gpu", "cuda:0", decode_on) as dali:
        for batch, expected in zip(dali, make_loader(wanted), strict=True):
            assert batch.keys == expected.keys
            images = apply_torch(batch.images, batch.augmentation.params).cpu().numpy()
            assert np.abs(images.astype(int) - expected.images).mean() < 1


@pytest.mark.parametrize(("decode_on", "augment_on"), PLACEMENTS)
def test_any_number_of_processes_stages_the_same_bytes(
    plan: Callable[..., LoadPlan], decode_on: Any, augment_on: Any
) -> None:
    loaders = [DaliLoader(plan(augmentation=STRONG), 4 * n, augment_on, "cuda:0", decode_on) for n in (1, 3)]
    for _ in range(2):
        for batch, other in zip(*loaders, strict=True):
            assert batch.keys == other.keys
            assert torch.equal(batch.images, other.images)
    for loader in loaders:
        loader.close()
