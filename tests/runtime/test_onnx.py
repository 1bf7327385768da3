from __future__ import annotations

import json
import subprocess
import sys
import venv
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import distribution
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import inkmill
from inkmill import weights
from inkmill.cli.main import run
from inkmill.config.load import load_spec
from inkmill.deploy.export.run import export
from inkmill.errors import ConfigError, InkmillError, ModelFileError
from inkmill.modelfile.onnx_file import encoded_varint, read_metadata, seal
from inkmill.runtime import Reader
from inkmill.runtime.evaluate import evaluate

KEY = "correct horse"


@pytest.fixture(scope="module")
def images(captchas: Path) -> list[Path]:
    return sorted((captchas / "images").iterdir())[:12]


def test_threads_share_one_reader(folder: Path, images: list[Path]) -> None:
    reader = Reader(folder / "reader.onnx", "cpu")
    alone = reader.read(images)
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda n: reader.read(images[n % 3 :], batch_size=1 + n), range(8)))
    for number, readings in enumerate(together):
        assert [reading.text for reading in readings] == [reading.text for reading in alone[number % 3 :]]
    assert "ONNX Runtime" in reader.runs_on
    assert "the CPU" in reader.runs_on


def test_without_a_file_the_packages_own_reader_reads(
    folder: Path, images: list[Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(weights, "FOLDER", folder)
    expected = Reader(folder / "reader.onnx").read(images[:3])
    assert Reader().read(images[:3]) == inkmill.load().read(images[:3]) == expected
    assert run(["infer", str(images[0]), "--format", "csv"]) == 0
    assert expected[0].text in capsys.readouterr().out


def test_it_starts_no_more_threads_than_it_may_use_cores(folder: Path) -> None:
    # By itself ONNX Runtime would start one for each core of the machine, and all would share the one that is allowed.
    script = (
        "import os, sys\n"
        "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "import numpy, cv2, onnxruntime\n"
        "from inkmill.runtime import Reader\n"
        "before = len(os.listdir('/proc/self/task'))\n"
        "reader = Reader(sys.argv[1], 'cpu')\n"
        "print(reader.runs_on, len(os.listdir('/proc/self/task')) - before, sep='|')\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script, folder / "reader.onnx"], capture_output=True, text=True, check=True
    )
    runs_on, started = ended.stdout.strip().split("|")
    assert runs_on.endswith("the CPU, 1 threads")
    assert int(started) == 0


@pytest.mark.parametrize("options", [{"beam_width": 6}, {"words": ["123", "77", "4049"]}], ids=["beam", "lexicon"])
def test_a_beam_and_a_lexicon_read_as_torch_does(folder: Path, images: list[Path], options: dict[str, object]) -> None:
    ours = inkmill.load(folder / "reader.safetensors", "cpu", **options).read(images)  # type: ignore[arg-type]
    theirs = inkmill.load(folder / "reader.onnx", "cpu", **options).read(images)  # type: ignore[arg-type]
    assert [reading.text for reading in theirs] == [reading.text for reading in ours]
    assert [r.confidence for r in theirs] == pytest.approx([r.confidence for r in ours], abs=1e-4)
    if "words" in options:
        assert {reading.text for reading in theirs} <= {"123", "77", "4049"}


def base_install(place: Path) -> Path:
    """Make a venv that holds what the project's base install needs and nothing else; return its Python."""
    venv.create(place, symlinks=True)
    (site,) = place.glob("lib/python*/site-packages")
    wanted, seen = ["inkmill"], set[str]()
    while wanted:
        name = canonicalize_name(wanted.pop())
        if name in seen:
            continue
        seen.add(name)
        found = distribution(name)
        needs = [Requirement(line) for line in found.requires or ()]
        wanted += [one.name for one in needs if one.marker is None or one.marker.evaluate({"extra": ""})]
        for part in {file.parts[0] for file in found.files or () if file.parts[0] != ".."} - {"__pycache__"}:
            if not (site / part).exists():
                (site / part).symlink_to(found.locate_file(part))
    return place / "bin" / "python"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows makes links for administrators alone")
def test_it_reads_in_a_venv_that_has_no_torch(folder: Path, images: list[Path], tmp_path: Path) -> None:
    python = base_install(tmp_path / "venv")
    alone = subprocess.run([python, "-c", "import torch"], capture_output=True, text=True, check=False)
    assert "ModuleNotFoundError: No module named 'torch'" in alone.stderr
    script = (
        "import sys\n"
        "from inkmill.runtime import Reader\n"
        "print([reading.text for reading in Reader(sys.argv[1], 'cpu').read(sys.argv[2:])])\n"
    )
    command = [python, "-c", script, folder / "reader.onnx", *images]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.stdout.strip() == str([r.text for r in Reader(folder / "reader.onnx").read(images)]), ended.stderr
    shell = [python, "-m", "inkmill", "infer", folder / "reader.onnx", images[0], "--format", "jsonl"]
    assert subprocess.run(shell, capture_output=True, text=True, check=False).returncode == 0


def test_evaluate_gives_the_same_tables_for_both_files(folder: Path, writable_captchas: Path, tmp_path: Path) -> None:
    lines = (writable_captchas / "labels.tsv").read_text("utf-8").splitlines()[:30]
    (writable_captchas / "thirty.tsv").write_text("\n".join(lines) + "\n", "utf-8")
    made = {}
    for name in ("reader.safetensors", "reader.onnx"):
        settings = [f"evaluate.checkpoint={folder / name}", f"evaluate.test={writable_captchas / 'thirty.tsv'}"]
        metrics = evaluate(load_spec(None, [*settings, f"results_dir={tmp_path / name}", "evaluate.workers=0"]))
        del metrics["checkpoint"], metrics["seconds"]
        table = (tmp_path / name / "evaluate" / "predictions.csv").read_text("utf-8")
        made[name] = (metrics, [line.rsplit(",", 2)[0] for line in table.splitlines()])
    assert made["reader.safetensors"] == made["reader.onnx"]
    assert len(made["reader.onnx"][1]) == 31


@pytest.mark.slow
def test_an_encrypted_file_needs_its_key(folder: Path, images: list[Path], tmp_path: Path) -> None:
    settings = [f"export.checkpoint={folder / 'reader.safetensors'}", f"export.onnx_file={tmp_path / 'x.onnx'}"]
    path = export(load_spec(None, [*settings, f"encryption_key={KEY}", f"results_dir={tmp_path}"]))
    assert b"output_id" not in path.read_bytes()
    assert (
        Reader(path, encryption_key=KEY).read(images[0])[0].text
        == Reader(folder / "reader.onnx").read(images[0])[0].text
    )
    with pytest.raises(ModelFileError, match="this encryption key does not open it"):
        Reader(path, encryption_key="wrong")
    with pytest.raises(ConfigError, match=r"export it with export\.probabilities=true"):
        Reader(path, encryption_key=KEY, beam_width=4)
    facts = json.loads(path.with_name("x.onnx.card.json").read_text("utf-8"))
    assert [made["verb"] for made in facts["made"]] == ["export"]


def outside(model: onnx.ModelProto) -> None:
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", "../../../etc/passwd"


def outside_in_a_node(model: onnx.ModelProto) -> None:
    value = helper.make_tensor("t", TensorProto.FLOAT, [1], [1.0])
    value.data_location = TensorProto.EXTERNAL
    model.graph.node.append(helper.make_node("Constant", [], ["unused"], value=value))


def other_input(model: onnx.ModelProto) -> None:
    model.graph.input[0].type.tensor_type.shape.dim[3].dim_value = 1_000_000


def other_output(model: onnx.ModelProto) -> None:
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.INT64


def loop(model: onnx.ModelProto) -> None:
    model.graph.node.append(helper.make_node("Loop", ["", ""], ["forever"], body=model.graph))


def counted_loop(model: onnx.ModelProto, rounds: int, inside: str = "Identity") -> None:
    body = helper.make_graph([helper.make_node(inside, ["", ""], ["forever"])], "body", [], [])
    model.graph.initializer.append(numpy_helper.from_array(np.array(rounds, np.int64), "rounds"))
    model.graph.node.append(helper.make_node("Loop", ["rounds", ""], ["forever"], body=body))


def long_loop(model: onnx.ModelProto) -> None:
    counted_loop(model, 1025)


def nested_loop(model: onnx.ModelProto) -> None:
    counted_loop(model, 3, inside="Loop")


def two_counts(model: onnx.ModelProto) -> None:
    counted_loop(model, 3)
    model.graph.initializer.append(helper.make_tensor("rounds", TensorProto.INT64, [1], [10**12]))


def function(model: onnx.ModelProto) -> None:
    model.functions.append(helper.make_function("a", "f", [], [], [], []))


def no_card(model: onnx.ModelProto) -> None:
    del model.metadata_props[:]


def huge_card(model: onnx.ModelProto) -> None:
    card = json.loads(model.metadata_props[0].value)
    card["model"]["input_width"] = card["model"]["input_height"] = 10**6
    model.metadata_props[0].value = json.dumps(card)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (outside, "keeps weights in other files, which is refused"),
        (outside_in_a_node, "keeps weights in other files, which is refused"),
        (
            other_input,
            "damaged, or not an ONNX file that can be run|its graph is not the one that its header describes",
        ),
        (
            other_output,
            "damaged, or not an ONNX file that can be run|its graph is not the one that its header describes",
        ),
        (loop, r"its graph has loops \(Loop\)"),
        (long_loop, r"its graph has loops \(Loop\)"),
        (nested_loop, r"its graph has loops \(Loop\)"),
        (two_counts, r"its graph has loops \(Loop\)"),
        (function, "holds functions or training graphs"),
        (no_card, "an ONNX file without a model's header"),
        (huge_card, r"its header is not a model's header \(model.input_width: Input should be less than"),
    ],
)
def test_a_hostile_file_is_refused_in_one_sentence(
    change: Callable[[onnx.ModelProto], None], said: str, folder: Path, tmp_path: Path
) -> None:
    model = onnx.load(folder / "reader.onnx")
    del model.metadata_props[-1]  # the seal
    change(model)
    for name, data in (("bare", model.SerializeToString()), ("sealed", seal(model.SerializeToString()))):
        (tmp_path / f"{name}.onnx").write_bytes(data)
        with pytest.raises(ModelFileError, match=rf"{name}\.onnx: (?:{said})") as caught:
            Reader(tmp_path / f"{name}.onnx")
        assert "\n" not in str(caught.value)


def test_a_field_that_only_onnx_runtime_would_see_is_refused(folder: Path, tmp_path: Path) -> None:
    """Its parser keeps 32 bits of a field's number; what is hidden above them could be a loop or other files."""
    model = onnx.load(folder / "reader.onnx")
    del model.metadata_props[-1]
    loop(model)
    for tag in (0x3A | 1 << 32, 0x3A | 1 << 63, 0x02):  # the graph, hidden; a field with the number 0
        graph = model.graph.SerializeToString()
        hidden = encoded_varint(tag) + encoded_varint(len(graph)) + graph
        (tmp_path / "x.onnx").write_bytes(seal(onnx.ModelProto().SerializeToString() + hidden))
        with pytest.raises(ModelFileError, match="not an ONNX file"):
            Reader(tmp_path / "x.onnx")


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04", b"\x80\x04K\x01.", b"\x3a\xff\xff\xff\xff\x0f", b"\x0a" * 999])
def test_what_is_no_onnx_file_is_refused_before_it_is_parsed(data: bytes) -> None:
    with pytest.raises(ModelFileError, match="not an ONNX file"):
        read_metadata(data, "x.onnx")


def test_every_flipped_bit_of_a_sealed_file_is_noticed(folder: Path) -> None:
    data = (folder / "reader.onnx").read_bytes()
    assert json.loads(read_metadata(data, "x")["inkmill"])["format"] == "inkmill-model-1"
    random = np.random.default_rng(0)
    for position in random.integers(0, len(data), 25):
        changed = bytearray(data)
        changed[position] ^= 1 << int(random.integers(8))
        with pytest.raises(ModelFileError):
            Reader(_written(changed, folder))


def _written(data: bytearray, folder: Path) -> Path:
    path = folder / "changed.onnx"
    path.write_bytes(data)
    return path


def test_a_device_that_is_not_there_is_one_sentence(folder: Path) -> None:
    with pytest.raises(InkmillError, match="cuda"):
        Reader(folder / "reader.onnx", "cuda:77")
    with pytest.raises(ConfigError, match="read on cpu or cuda"):
        Reader(folder / "reader.onnx", "tpu")
