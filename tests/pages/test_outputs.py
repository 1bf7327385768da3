"""The files that other programs read: their structure by the standards, their places, what is escaped.

The XSDs of ALTO and PAGE are not carried: what they allow of the elements that are used stands here as a grammar.
"""

from __future__ import annotations

import html
import json
from pathlib import Path
from xml.etree import ElementTree as Xml

import numpy as np
import pytest

from inkmill.errors import ConfigError
from inkmill.pages.documents import Document
from inkmill.pages.outputs import FORMATS
from inkmill.pages.outputs.data import DocumentJson, write_json, write_text
from inkmill.pages.outputs.shapes import legal
from inkmill.pages.types import Line, Page, PageImage, Word

ALTO, PAGE = (
    "{http://www.loc.gov/standards/alto/ns-v4#}",
    "{http://schema.primaresearch.org/PAGE/gts/pagecontent/2019-07-15}",
)
PLACE = {"HPOS", "VPOS", "WIDTH", "HEIGHT"}
ALTO_GRAMMAR = {
    "alto": (["Description", "Layout"], {"schemaLocation"}),
    "Description": (["MeasurementUnit", "sourceImageInformation", "Processing"], set()),
    "Processing": (["processingSoftware"], {"ID"}),
    "processingSoftware": (["softwareName", "softwareVersion"], set()),
    "sourceImageInformation": (["fileName"], set()),
    "Layout": (["Page"], set()),
    "Page": (["PrintSpace"], {"ID", "PHYSICAL_IMG_NR", "HEIGHT", "WIDTH"}),
    "PrintSpace": (["TextBlock"], PLACE),
    "TextBlock": (["Shape", "TextLine"], {"ID", "ROTATION", *PLACE}),
    "TextLine": (["Shape", "String SP"], {"ID", "BASELINE", *PLACE}),
    "String": (["Shape"], {"ID", "CONTENT", "WC", *PLACE}),
    "SP": ([], PLACE),
    "Shape": (["Polygon"], set()),
    "Polygon": ([], {"POINTS"}),
    **{name: ([], set()) for name in ("MeasurementUnit", "fileName", "softwareName", "softwareVersion")},
}
"""Of ALTO 4.4: which children in which order, which attributes."""
PAGE_GRAMMAR = {
    "PcGts": (["Metadata", "Page"], {"schemaLocation"}),
    "Metadata": (["Creator", "Created", "LastChange"], set()),
    "Page": (["ReadingOrder", "TextRegion"], {"imageFilename", "imageWidth", "imageHeight", "orientation"}),
    "ReadingOrder": (["OrderedGroup"], set()),
    "OrderedGroup": (["RegionRefIndexed"], {"id"}),
    "RegionRefIndexed": ([], {"index", "regionRef"}),
    "TextRegion": (["Coords", "TextLine", "TextEquiv"], {"id"}),
    "TextLine": (["Coords", "Baseline", "Word", "TextEquiv"], {"id"}),
    "Word": (["Coords", "Glyph", "TextEquiv"], {"id"}),
    "Glyph": (["Coords", "TextEquiv"], {"id"}),
    "Coords": ([], {"points"}),
    "Baseline": ([], {"points"}),
    "TextEquiv": (["Unicode"], {"conf"}),
    **{name: ([], set()) for name in ("Creator", "Created", "LastChange", "Unicode")},
}
"""Of PAGE 2019-07-15."""


def names(element, space):
    return element.tag.removeprefix(space)


def follows(element, grammar, space):
    """Assert that an element and all below it are as the grammar has them."""
    name = names(element, space)
    order, attributes = grammar[name]
    assert {key.rpartition("}")[2] for key in element.attrib} <= attributes, name
    ranks = [next(i for i, group in enumerate(order) if names(child, space) in group.split()) for child in element]
    assert ranks == sorted(ranks), name
    for child in element:
        follows(child, grammar, space)


@pytest.fixture(params=[0, 90, 180, 270])
def page(request, page_reader, drawn):
    pixels = np.ascontiguousarray(np.rot90(drawn.pixels, -request.param // 90))
    return page_reader.read_page(PageImage('a "quoted" <name>.png', 1, pixels, 150.0))


@pytest.fixture
def hostile():
    corners = np.array([[1, 1], [9, 1], [9, 5], [1, 5]], np.float32)
    text = "<b>\"&'\x00\ud800\t"
    word = Word(text, 0.5, corners, np.stack([corners] * len(text)))
    return Page("x\x01.png", 1, 10, 10, None, 0, (Line(text, 0.5, corners, (word,)),))


@pytest.fixture
def empty():
    return Page("white.png", 1, 10, 20, None, 0, ())


def box_of(title):
    return [float(number) for number in title.split("bbox ")[1].split(";")[0].split()]


def test_hocr_has_the_boxes_and_metas_that_the_standard_asks_for(page):
    root = Xml.fromstring(FORMATS["hocr"].write([page], None))
    space = "{http://www.w3.org/1999/xhtml}"
    metas = [meta.get("name") for meta in root.iter(f"{space}meta")]
    assert metas.count("ocr-system") == metas.count("ocr-capabilities") == 1
    parts = {
        kind: [one for one in root.iter() if one.get("class") == kind] for kind in ("ocr_page", "ocr_line", "ocrx_word")
    }
    assert 'image "a \\"quoted\\" <name>.png"' in parts["ocr_page"][0].get("title")
    assert "ppageno 0; scan_res 150 150" in parts["ocr_page"][0].get("title")
    assert ["".join(word.itertext()) for word in parts["ocrx_word"]] == page.text.split()
    for line, element in zip(page.lines, parts["ocr_line"], strict=True):
        left, top, right, bottom = box_of(element.get("title"))
        assert (line.polygon.min(axis=0) >= [left - 1, top - 1]).all()
        assert (line.polygon.max(axis=0) <= [right + 1, bottom + 1]).all()
        angle = {0: None, 90: "textangle 270", 180: "textangle 180", 270: "textangle 90"}[page.rotation]
        assert (angle or "textangle") in element.get("title") or angle is None
        assert ("baseline" in element.get("title")) == (page.rotation == 0)
    ids = [one.get("id") for one in root.iter() if one.get("id")]
    assert len(ids) == len(set(ids))


def test_alto_follows_its_schema_and_says_every_word(page):
    root = Xml.fromstring(FORMATS["alto"].write([page, page], None))
    follows(root, ALTO_GRAMMAR, ALTO)
    words = [string.get("CONTENT") for string in root.iter(f"{ALTO}String")]
    assert words == page.text.split() * 2
    for string in root.iter(f"{ALTO}String"):
        assert 0 <= float(string.get("WC")) <= 1
        assert 0 <= int(string.get("HPOS")) < int(string.get("HPOS")) + int(string.get("WIDTH")) <= page.width
        assert (string.find(f"{ALTO}Shape") is not None) == (page.rotation != 0)
    rotation = {block.get("ROTATION") for block in root.iter(f"{ALTO}TextBlock")}
    assert rotation == {None if page.rotation == 0 else str(360 - page.rotation)}


def test_page_xml_follows_its_schema_and_says_every_word(page):
    root = Xml.fromstring(FORMATS["page"].write([page], None))
    follows(root, PAGE_GRAMMAR, PAGE)
    words = [word.find(f"{PAGE}TextEquiv/{PAGE}Unicode").text for word in root.iter(f"{PAGE}Word")]
    assert words == page.text.split()
    for points in (coords.get("points") for coords in root.iter(f"{PAGE}Coords")):
        pairs = [tuple(map(int, pair.split(","))) for pair in points.split()]
        assert len(pairs) >= 4
        assert all(0 <= x <= page.width and 0 <= y <= page.height for x, y in pairs)
    regions = [region.get("id") for region in root.iter(f"{PAGE}TextRegion")]
    assert [ref.get("regionRef") for ref in root.iter(f"{PAGE}RegionRefIndexed")] == regions
    orientation = {0: None, 90: "-90", 180: "180", 270: "90"}[page.rotation]
    assert root.find(f"{PAGE}Page").get("orientation") == orientation


def test_tsv_has_the_columns_of_tesseract(page):
    rows = [row.split("\t") for row in FORMATS["tsv"].write([page], None).decode().splitlines()]
    assert rows[0][:2] == ["level", "page_num"]
    assert all(len(row) == 12 for row in rows)
    assert [row[11] for row in rows if row[0] == "5"] == page.text.split()
    assert {row[10] for row in rows[1:] if row[0] != "5"} == {"-1"}


def test_json_holds_the_page_and_follows_its_schema(page):
    content = write_json([page])
    found = DocumentJson.model_validate_json(content, strict=False)
    assert found.pages[0].rotation == page.rotation
    assert [line.text for line in found.pages[0].lines] == [line.text for line in page.lines]
    first = page.lines[0].words[0]
    assert np.array(found.pages[0].lines[0].words[0].polygon) == pytest.approx(first.polygon, abs=0.06)
    assert len(json.loads(content)["pages"][0]["lines"][0]["words"][0]["characters"]) == len(first.text)


def test_the_schema_in_the_repository_is_that_of_the_json():
    stored = Path(__file__).parent.parent.parent / "docs" / "read.schema.json"
    assert json.loads(stored.read_text(encoding="utf-8")) == DocumentJson.model_json_schema()


def test_text_has_a_line_for_each_row_and_a_form_feed_between_pages(page):
    assert write_text([page, page]).decode().split("\n\f")[0] == page.text


@pytest.mark.parametrize("name", ["hocr", "alto", "page", "tsv", "json", "text"])
def test_hostile_text_stays_text_and_the_file_stays_whole(name, hostile):
    content = FORMATS[name].write([hostile], None)
    if name in ("hocr", "alto", "page"):
        root = Xml.fromstring(content)
        assert not list(root.iter("b"))
        said = "".join(root.itertext()) + "".join(value for one in root.iter() for value in one.attrib.values())
        assert "<b>\"&'" in html.unescape(said)
    assert b"\x00" not in content


@pytest.mark.parametrize("name", [name for name in FORMATS if name not in ("pdf", "picture")])
def test_an_empty_page_makes_a_file(name, empty):
    content = FORMATS[name].write([empty], None)
    if name in ("alto", "page"):
        grammar, space = {"alto": (ALTO_GRAMMAR, ALTO), "page": (PAGE_GRAMMAR, PAGE)}[name]
        follows(Xml.fromstring(content), grammar, space)
    assert content


@pytest.mark.parametrize("name", ["pdf", "picture"])
def test_what_shows_the_page_asks_for_its_document(name, empty):
    with pytest.raises(ConfigError, match="document"):
        FORMATS[name].write([empty], None)


def test_the_picture_shows_each_word_over_its_place(page_reader, drawn):
    with Document(drawn.pixels) as document:
        page = page_reader.read_page(document.page(1))
        root = Xml.fromstring(FORMATS["picture"].write([page], document))
    space = "{http://www.w3.org/2000/svg}"
    assert [text.text for text in root.iter(f"{space}text")] == page.text.split()
    assert len(list(root.iter(f"{space}polygon"))) == 2 * len(page.lines)
    assert root.find(f"{space}image").get("href").startswith("data:image/jpeg;base64,")


def test_characters_that_xml_forbids_are_replaced():
    assert legal("a\x00b\ud800\ufffec\n\U0001f600") == "a\ufffdb\ufffd\ufffdc\n\U0001f600"
