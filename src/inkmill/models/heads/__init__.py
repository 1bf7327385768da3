"""Heads by name: CTC, Attn, Slots."""

from inkmill.models.heads.attention import AttentionHead
from inkmill.models.heads.base import HEADS, Head, HeadSpec
from inkmill.models.heads.ctc import CTCHead
from inkmill.models.heads.slots import SlotsHead

__all__ = ["HEADS", "AttentionHead", "CTCHead", "Head", "HeadSpec", "SlotsHead"]
