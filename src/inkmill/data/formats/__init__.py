"""Label formats, each read and written: what a line says, and nothing about where images lie or how they are stored.

`FORMATS` holds the classes by name; `detect.detect_format` says which one a path has, and why.
"""

from __future__ import annotations

# One line a format: the import registers it.
from inkmill.data.formats import art as art
from inkmill.data.formats import class_folders as class_folders
from inkmill.data.formats import coco as coco
from inkmill.data.formats import coco_det as coco_det
from inkmill.data.formats import coco_text as coco_text
from inkmill.data.formats import csv_classes as csv_classes
from inkmill.data.formats import csv_table as csv_table
from inkmill.data.formats import ctw1500 as ctw1500
from inkmill.data.formats import cvat as cvat
from inkmill.data.formats import doctr as doctr
from inkmill.data.formats import doctr_det as doctr_det
from inkmill.data.formats import easyocr as easyocr
from inkmill.data.formats import filename as filename
from inkmill.data.formats import funsd as funsd
from inkmill.data.formats import gt_list as gt_list
from inkmill.data.formats import icdar as icdar
from inkmill.data.formats import icdar_det as icdar_det
from inkmill.data.formats import icdar_more as icdar_more
from inkmill.data.formats import label_studio as label_studio
from inkmill.data.formats import labelme as labelme
from inkmill.data.formats import mmocr as mmocr
from inkmill.data.formats import multilabel as multilabel
from inkmill.data.formats import paddle_det as paddle_det
from inkmill.data.formats import receipts as receipts
from inkmill.data.formats import td500 as td500
from inkmill.data.formats import total_text as total_text
from inkmill.data.formats import tsv as tsv
from inkmill.data.formats import txt as txt
from inkmill.data.formats import via as via
from inkmill.data.formats import yolo as yolo
from inkmill.data.formats.base import FORMATS, Entry, LabelFormat

__all__ = ["FORMATS", "Entry", "LabelFormat"]
