from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from inkmill.config.dataset import SourceSpec  # noqa: E402
from inkmill.config.spec import Spec  # noqa: E402
from inkmill.data.sources import Mix, Subset, open_source  # noqa: E402
from inkmill.machine import cores  # noqa: E402
from inkmill.perf.plan import planned_keys, remember, with_plan  # noqa: E402
from inkmill.perf.predict import Settings  # noqa: E402
from inkmill.training.run import train  # noqa: E402

CPU = torch.device("cpu")
SETTINGS = Settings(loader="workers", workers=1, cache="ram", augment_on="cpu")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def spec(small_spec: Callable[..., Spec]) -> Spec:
    """A spec that leaves the loader and its workers to the software."""
    made = small_spec()
    made.dataset.__pydantic_fields_set__.discard("workers")
    return made


@pytest.fixture
def source(few_captchas: Path) -> Subset:
    return Subset(open_source(SourceSpec(path=str(few_captchas))), range(100))


def decided(spec: Spec, source: object, ranks: int = 1) -> tuple[Spec, list[str]]:
    said: list[str] = []
    return with_plan(spec, source, CPU, ranks, said.append), said  # type: ignore[arg-type]


def test_a_remembered_plan_is_taken_with_its_reason_in_one_line(spec: Spec, source: Subset) -> None:
    remember(spec, source.source, CPU, SETTINGS, "the set fits")  # the whole; training has a part of it
    after, said = decided(spec, source)
    assert {name: getattr(after.dataset, name) for name in planned_keys(SETTINGS)} == planned_keys(SETTINGS)
    assert len(said) == 1
    assert "the set fits" in said[0]
    assert spec.dataset.loader == "auto"


def test_what_the_user_set_stays(small_spec: Callable[..., Spec], source: Subset) -> None:
    spec = small_spec("dataset.cache=none", "dataset.workers=3")
    remember(spec, source, CPU, SETTINGS, "why")
    after, _ = decided(spec, source)
    assert (after.dataset.workers, after.dataset.cache, after.dataset.loader) == (3, "none", "workers")
    named = small_spec("dataset.loader=workers")
    assert decided(named, source) == (named, [])


@pytest.mark.parametrize(
    "change", ["model.input_width=96", "dataset.batch_size=8", "dataset.augmentation.preset=tao", "train.num_epochs=1"]
)
def test_another_model_batch_or_augmentation_finds_no_plan(
    change: str, small_spec: Callable[..., Spec], source: Subset
) -> None:
    remember(small_spec(), source, CPU, SETTINGS, "why")
    after, said = decided(small_spec(change), source)
    assert after.dataset.loader == "auto"
    assert "inkmill diagnose" in said[0]


def test_other_data_find_no_plan(spec: Spec, source: Subset, captchas: Path) -> None:
    remember(spec, source, CPU, SETTINGS, "why")
    after, _ = decided(spec, open_source(SourceSpec(path=str(captchas / "labels.tsv"))))
    assert after.dataset.loader == "auto"


def test_without_a_plan_workers_follow_the_cores_and_a_line_says_so(spec: Spec, source: Subset) -> None:
    after, said = decided(spec, source)
    assert after.dataset.workers == min(4, cores())
    assert said == [
        f"loader: {after.dataset.workers} worker processes, for {cores()} cores;"
        " `inkmill diagnose` would measure what is fastest here"
    ]


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", '{"version": 2, "settings": {"loader": "rm -rf", "workers": 1}, "why": ""}', "x" * 99_999],
)
def test_a_damaged_plan_is_ignored_and_said(content: str, spec: Spec, source: Subset) -> None:
    remember(spec, source, CPU, SETTINGS, "why").write_text(content, encoding="utf-8")
    after, said = decided(spec, source)
    assert after.dataset.loader == "auto"
    assert "damaged" in said[0]


def test_a_plan_of_another_version_is_as_none(spec: Spec, source: Subset) -> None:
    path = remember(spec, source, CPU, SETTINGS, "why")
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | {"version": 99}), encoding="utf-8")
    assert len(decided(spec, source)[1]) == 1


def test_several_ranks_do_not_take_the_plan_of_one(spec: Spec, source: Subset) -> None:
    remember(spec, source, CPU, SETTINGS, "why")
    assert decided(spec, source, ranks=2)[0].dataset.loader == "auto"


def test_training_takes_the_plan(spec: Spec, few_captchas: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    spec.train.num_epochs = 2
    remember(spec, open_source(SourceSpec(path=str(few_captchas))), CPU, SETTINGS, "measured here")
    train(spec, console=Console(width=200))
    assert (
        "loader: 1 worker processes, cache=ram, augment_on=cpu, as measured by diagnose: measured here"
        in capsys.readouterr().out
    )


def test_mixes_are_known_by_their_parts_and_weights(source: Subset) -> None:
    whole = source.source
    assert Mix([source, source], [1, 2]).storage_fingerprint == Mix([whole, whole], [1, 2]).storage_fingerprint
    assert Mix([source, source], [1, 2]).storage_fingerprint != Mix([whole, whole], [1, 3]).storage_fingerprint
