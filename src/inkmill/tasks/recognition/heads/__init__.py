"""Heads by name: CTC, Attn, Slots."""

from inkmill.tasks.recognition.heads.attention import AttentionHead
from inkmill.tasks.recognition.heads.base import HEADS, Head, HeadSpec
from inkmill.tasks.recognition.heads.ctc import CTCHead
from inkmill.tasks.recognition.heads.slots import SlotsHead

__all__ = ["HEADS", "AttentionHead", "CTCHead", "Head", "HeadSpec", "SlotsHead"]
