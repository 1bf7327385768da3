"""Heads by name: CTC, Attn, Slots; and what guides CTC in training."""

from inkmill.tasks.recognition.heads.attention import AttentionHead
from inkmill.tasks.recognition.heads.base import HEADS, Head, HeadSpec
from inkmill.tasks.recognition.heads.ctc import CTCHead
from inkmill.tasks.recognition.heads.guide import AttentionGuide
from inkmill.tasks.recognition.heads.slots import SlotsHead

__all__ = ["HEADS", "AttentionGuide", "AttentionHead", "CTCHead", "Head", "HeadSpec", "SlotsHead"]
