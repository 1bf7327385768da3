"""Pruning: channels that matter least are taken out of a trained reader."""
