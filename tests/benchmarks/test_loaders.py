from __future__ import annotations

import gc
import json
import runpy
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from inkmill.bench.cases import LoadTask  # noqa: E402
from inkmill.bench.workload import write_crops  # noqa: E402
from inkmill.data.sources import LmdbSource  # noqa: E402
from peers import peer_cases  # noqa: E402

ONLY = ["--only", "torch-pil,torch-albumentations,workers,resident", "--augment", "strong"]
PEERS = [
    pytest.param(case, id=case.loader, marks=pytest.mark.slow if case.loader == "dali-docs" else ())
    for case in peer_cases("strong")  # DALI starts Python processes of its own
]
SCRIPT = Path(__file__).parents[2] / "benchmarks" / "loaders.py"


@pytest.mark.filterwarnings("ignore")  # some peers leave files and sockets open
@pytest.mark.parametrize("case", PEERS)
def test_every_peer_delivers_different_batches_of_the_finish_line(case, tmp_path):
    crops = LmdbSource(write_crops(tmp_path / "crops", 64))
    stream = case.stream(LoadTask(crops, tmp_path, batch_size=16, workers=0, device="cpu"))
    try:
        first = next(stream)
    except ModuleNotFoundError as error:
        pytest.skip(f"{error.name} is not installed")
    batches = [first, *(next(stream) for _ in range(5))]  # more than one pass over the 64 crops
    stream.close()
    del stream
    gc.collect()
    assert {(tuple(batch.shape), batch.dtype) for batch in batches} == {((16, 32, 128, 3), torch.uint8)}
    assert len({batch.numpy().tobytes() for batch in batches}) == 6
    assert float(first.float().std()) > 10


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_full_comparison_writes_every_row_and_a_chart(tmp_path, monkeypatch, capsys):
    found, chart = tmp_path / "rows.json", tmp_path / "chart.png"
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--smoke", *ONLY, "--json", str(found), "--chart", str(chart)])
    with pytest.raises(SystemExit) as left:
        runpy.run_path(str(SCRIPT), run_name="__main__")
    assert left.value.code == 0, capsys.readouterr().err
    rows = json.loads(found.read_text())["rows"]
    assert {row["loader"] for row in rows} == {"torch-pil", "torch-albumentations", "workers", "resident"}
    assert chart.read_bytes().startswith(b"\x89PNG")
    assert "workers" in capsys.readouterr().out
