"""Label formats, each read and written: what a line says, and nothing about where images lie or how they are stored.

`FORMATS` holds the classes by name; `sniff.sniff` says which one a path has, and why.
"""

from __future__ import annotations

from inkmill.data.formats.base import FORMATS, Entry, LabelFormat
from inkmill.data.formats.csv_table import CsvTable
from inkmill.data.formats.doctr import DocTr
from inkmill.data.formats.easyocr import EasyOcr
from inkmill.data.formats.filename import FileName
from inkmill.data.formats.gt_list import GtList
from inkmill.data.formats.icdar import Icdar
from inkmill.data.formats.icdar_det import IcdarDet
from inkmill.data.formats.multilabel import MultiLabel
from inkmill.data.formats.paddle_det import PaddleDet
from inkmill.data.formats.tsv import Tsv
from inkmill.data.formats.txt import TxtPerImage

__all__ = [
    "FORMATS",
    "CsvTable",
    "DocTr",
    "EasyOcr",
    "Entry",
    "FileName",
    "GtList",
    "Icdar",
    "IcdarDet",
    "LabelFormat",
    "MultiLabel",
    "PaddleDet",
    "Tsv",
    "TxtPerImage",
]
