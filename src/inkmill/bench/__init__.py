"""Measurements that anyone can repeat: what inkmill's loaders do per second, beside what one would write otherwise.

stamp      the machine a figure comes from
crops      JPEG word crops of a realistic size, rendered the same everywhere
contest    the task that every contestant gets, and what a contestant is
ours       inkmill's loaders x cache tiers x engines x augmentation
peers/     one file a peer: torch DataLoader with PIL, with Albumentations, WebDataset, DALI, LitData, SPDL, FFCV
measure    warm-up, repeats, median and spread
run        all rows in one run
show       table, bar chart, JSON
"""
