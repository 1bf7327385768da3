"""`inkmill bench loaders`: images a second of every loader, beside the classic torch DataLoader, on this machine.

workload   what is loaded: JPEG word crops rendered the same everywhere, the size they end at, the strong augmentation
cases      what a benchmark case is; the cases of inkmill, read from the registry of loaders
baseline   the case to compare with: torch DataLoader + Pillow + torchvision v2
run        warm-up, windows and median; all cases one after another; the table and the JSON

benchmarks/loaders.py runs the same with every other library's loader (benchmarks/peers/) and draws a chart.
"""
