"""Layers that know no task: backbones, necks, rectifiers, and what pruning and int8 do to them. Needs torch."""
