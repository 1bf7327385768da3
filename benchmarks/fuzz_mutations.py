"""The mutations of benchmarks/fuzz.py: accidents (truncated, flipped) and intentions (promises, bombs, path tricks)."""

from __future__ import annotations

import io
import json
import pickle
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

import cv2
import numpy as np

from inkmill.modelfile.onnx_file import encoded_varint, seal
from inkmill.modelfile.safe_header import with_digest

Random = np.random.Generator
SIDES = (0, 1, 65_500, 65_535)


class Case(NamedTuple):
    """One file to try."""

    kind: str
    mutation: str
    data: bytes


def truncated(data: bytes, random: Random) -> bytes:
    """Cut the end off."""
    return data[: int(random.integers(0, len(data)))]


def flipped(data: bytes, random: Random) -> bytes:
    """Flip 1 to 16 bits."""
    changed = bytearray(data)
    for position in random.integers(0, len(data), int(random.integers(1, 17))):
        changed[position] ^= 1 << int(random.integers(8))
    return bytes(changed)


def flipped_at_start(data: bytes, random: Random) -> bytes:
    """Flip bits of the first 4 KiB, where headers are."""
    return flipped(data[:4096], random) + data[4096:]


def overwritten(data: bytes, random: Random) -> bytes:
    """Write a run of noise, zeros or ones over a place."""
    start, length = int(random.integers(0, len(data))), int(random.integers(1, 64))
    run = (random.bytes(length), b"\0" * length, b"\xff" * length)[int(random.integers(3))]
    return (data[:start] + run + data[start + length :])[: len(data)]


def spliced(data: bytes, random: Random) -> bytes:
    """Take a part out, or put it in twice."""
    a, b = sorted(int(n) for n in random.integers(0, len(data), 2))
    return data[:a] + data[b:] if random.integers(2) else data[:b] + data[a:]


ACCIDENTS: tuple[Callable[[bytes, Random], bytes], ...] = (
    truncated,
    flipped,
    flipped_at_start,
    overwritten,
    spliced,
)


def model_cases(models: dict[str, bytes], count: int, random: Random) -> Iterator[Case]:
    """Yield `count` cases, the kinds of files in turn; `models` holds a good one of each."""
    ways = [
        *(("onnx", change.__name__, change) for change in ACCIDENTS),
        *(("onnx", f"{change.__name__}, sealed again", _sealed_again(change)) for change in ACCIDENTS),
        ("onnx", "numbers of the card", _onnx_card),
        ("onnx", "numbers of the graph", _onnx_graph),
        ("onnx", "hidden fields", _onnx_hidden),
        *(("safetensors", change.__name__, change) for change in ACCIDENTS),
        ("safetensors", "header, sealed again", _safetensors_header),
        ("safetensors", "weights, sealed again", _safetensors_weights),
        ("safetensors", "length of the header", _header_length),
        *(("pth", change.__name__, change) for change in ACCIDENTS),
        ("pth", "zip bomb", _zip_bomb),
        ("pth", "pickle that calls", _pickle),
        ("pth", "weights of one number", _pth_spread),
    ]
    magics = (b"PK\x03\x04", b"\x80\x04", b"inkmillE", b"GIF89a", b"\x7fELF", b"")
    for number in range(count):
        if number % 20 == 19:
            kind = ("onnx", "safetensors", "pth")[number // 20 % 3]
            yield Case(kind, "another file's start", magics[number // 20 % len(magics)] + random.bytes(500))
            continue
        kind, name, change = ways[number % len(ways)]
        yield Case(kind, name, change(models[kind], random))


def _sealed_again(change: Callable[[bytes, Random], bytes]) -> Callable[[bytes, Random], bytes]:
    length = len(seal(b""))
    return lambda data, random: seal(change(data[:-length], random))


def _absurd(random: Random) -> int:
    return int((0, -1, 1, 3, 65_500, 10**6, 2**31, 2**63, 10**30)[int(random.integers(9))])


def _onnx_card(data: bytes, random: Random) -> bytes:
    import onnx

    model = onnx.load_from_string(data)
    entry = next(entry for entry in model.metadata_props if entry.key == "inkmill")
    entry.value = _changed_card(entry.value, random)
    del model.metadata_props[-1]
    return seal(model.SerializeToString())


def _onnx_graph(data: bytes, random: Random) -> bytes:
    """Change a size that an operator, a weight or the input claims, or let the graph make 4 TiB of zeros."""
    import onnx
    from onnx import TensorProto, helper

    model = onnx.load_from_string(data)
    del model.metadata_props[-1]
    number = min(_absurd(random), 2**62)
    numbered = [a for node in model.graph.node for a in node.attribute if a.ints or a.type == onnx.AttributeProto.INT]
    match int(random.integers(4)):
        case 0:
            attribute = numbered[int(random.integers(len(numbered)))]
            if attribute.ints:
                attribute.ints[0] = number
            else:
                attribute.i = number
        case 1:
            weight = model.graph.initializer[int(random.integers(len(model.graph.initializer)))]
            if weight.dims:
                weight.dims[0] = number
        case 2:
            model.graph.input[0].type.tensor_type.shape.dim[int(random.integers(4))].dim_value = number
        case _:
            model.graph.initializer.append(helper.make_tensor("size", TensorProto.INT64, [1], [2**40]))
            model.graph.node.append(helper.make_node("ConstantOfShape", ["size"], ["zeros"]))
            model.graph.node.append(helper.make_node("ReduceSum", ["zeros"], ["total"], keepdims=0))
            model.graph.output.append(helper.make_tensor_value_info("total", TensorProto.FLOAT, []))
    return seal(model.SerializeToString())


def _onnx_hidden(data: bytes, random: Random) -> bytes:
    """Put an endless loop into a field whose number is the graph's in its lower 32 bits, all that is kept of it."""
    import onnx
    from onnx import helper

    model = onnx.load_from_string(data)
    del model.metadata_props[-1]
    body = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "body", [], [])
    model.graph.node.append(helper.make_node("Loop", ["", ""], ["forever"], body=body))
    graph = model.graph.SerializeToString()
    model.ClearField("graph")
    tag = 7 << 3 | 2 | 1 << int(random.integers(32, 64))
    return seal(model.SerializeToString() + encoded_varint(tag) + encoded_varint(len(graph)) + graph)


def _pth_spread(data: bytes, random: Random) -> bytes:
    """Let one number stand for every weight of a model much larger than the file."""
    import torch

    state = torch.load(io.BytesIO(data), weights_only=True)
    weights = state["model"].items()
    state["model"] = {name: torch.zeros((), dtype=tensor.dtype).expand(tensor.shape) for name, tensor in weights}
    file = io.BytesIO()
    torch.save(state, file)
    return file.getvalue()


def _changed_card(text: str, random: Random) -> str:
    card = json.loads(text)
    place = card if random.integers(3) == 0 else card["model"]
    name = sorted(place)[int(random.integers(len(place)))]
    place[name] = (_absurd(random), "../../etc/passwd", ["a"] * 100_000, None)[int(random.integers(4))]
    return json.dumps(card)


def _safetensors_header(data: bytes, random: Random) -> bytes:
    length = int.from_bytes(data[:8], "little")
    header, body = json.loads(data[8 : 8 + length]), data[8 + length :]
    names = [name for name in header if name != "__metadata__"]
    name = names[int(random.integers(len(names)))]
    match int(random.integers(6)):
        case 0:
            header[name]["shape"] = [_absurd(random)] * int(random.integers(1, 5))
        case 1:
            header[name]["data_offsets"] = [_absurd(random), _absurd(random)]
        case 2:
            header[name]["dtype"] = ("F64", "I8", "BOOL", "X", 3)[int(random.integers(5))]
        case 3:
            header["../../../etc/" + name] = header.pop(name)
        case 4:
            del header[name]
        case _:
            header["__metadata__"]["inkmill"] = _changed_card(header["__metadata__"]["inkmill"], random)
    text = json.dumps(header).encode()
    return with_digest(len(text).to_bytes(8, "little") + text + body)


def _safetensors_weights(data: bytes, random: Random) -> bytes:
    start = 8 + int.from_bytes(data[:8], "little")
    return with_digest(data[:start] + overwritten(data[start:], random))


def _header_length(data: bytes, random: Random) -> bytes:
    return (abs(_absurd(random)) % 2**64).to_bytes(8, "little") + data[8:]


def _zip_bomb(data: bytes, random: Random) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({"model": 1}))
        archive.writestr("archive/data/0", bytes(int(random.integers(1, 64)) << 20))
    return file.getvalue()


class _Calls:
    def __reduce__(self) -> tuple[object, ...]:
        import os

        return os.system, ("exit 1",)


def _pickle(data: bytes, random: Random) -> bytes:
    return pickle.dumps(_Calls(), protocol=int(random.integers(0, 5)))


def image_cases(pictures: list[bytes], count: int, random: Random) -> Iterator[Case]:
    """Yield `count` mutated images in all formats."""
    suffixes = (".png", ".jpg", ".webp", ".bmp", ".tiff", ".gif")
    ways: list[tuple[str, Callable[[bytes, Random], bytes]]] = [(change.__name__, change) for change in ACCIDENTS]
    for number in range(count):
        if number % 7 == 6:
            yield Case("png", "sides of 0 to 65,535", _png_of_size(random))
            continue
        if number % 7 == 5:
            suffix = suffixes[number // 7 % len(suffixes)]
            yield Case(suffix[1:], "side in the header", _with_side(_encoded(pictures, suffix, random), suffix, random))
            continue
        if number % 50 == 49:
            yield Case("png", "decompression bomb", _png_bomb(random))
            continue
        suffix = suffixes[number % len(suffixes)]
        name, change = ways[number % len(ways)]
        yield Case(suffix[1:], name, change(_encoded(pictures, suffix, random), random))


def _encoded(pictures: list[bytes], suffix: str, random: Random) -> bytes:
    picture = cv2.imdecode(np.frombuffer(pictures[int(random.integers(len(pictures)))], np.uint8), cv2.IMREAD_COLOR)
    assert picture is not None  # one of ours
    return bytes(cv2.imencode(suffix, picture)[1])


def _png(width: int, height: int, pixels: bytes) -> bytes:
    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(pixels, 1)) + chunk(b"IEND", b"")
    )


def _png_of_size(random: Random) -> bytes:
    """An honest picture of odd sides, as far as it stays below 70 million pixels; else only its header says so."""
    width, height = (SIDES[int(random.integers(len(SIDES)))] for _ in range(2))
    if random.integers(2):
        height = int(random.integers(1, 1000))
    return _png(width, height, bytes(height * (width + 1)) if width * height < 70_000_000 else bytes(1000))


def _png_bomb(random: Random) -> bytes:
    """Far more pixels than its header says."""
    return _png(100, 100, bytes(int(random.integers(50, 400)) << 20))


def _with_side(data: bytes, suffix: str, random: Random) -> bytes:
    """Write another size into the header of any format."""
    side = SIDES[int(random.integers(len(SIDES)))]
    changed = bytearray(data)
    if suffix == ".png":
        changed[16:20] = struct.pack(">I", side)
        changed[29:33] = struct.pack(">I", zlib.crc32(bytes(changed[12:29])))
    elif suffix == ".jpg":
        frame = data.index(b"\xff\xc0")
        changed[frame + 5 : frame + 7] = struct.pack(">H", side)
    elif suffix == ".bmp":
        changed[18:22] = struct.pack("<i", side)
    elif suffix == ".gif":
        changed[6:8] = struct.pack("<H", side)
    elif suffix == ".tiff":
        order = "<" if data[:2] == b"II" else ">"
        (directory,) = struct.unpack_from(order + "I", data, 4)
        entry = data.index(struct.pack(order + "H", 0x0100), directory)
        changed[entry + 8 : entry + 12] = struct.pack(order + "I", side)
    else:
        changed[24:27] = side.to_bytes(3, "little")
    return bytes(changed)
