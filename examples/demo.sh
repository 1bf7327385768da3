#!/usr/bin/env bash
# The demo: a reader trained on 4,500 real captchas reads 500 others. `make demo` runs it.
set -euo pipefail
started=$SECONDS
out=results/demo
rm -rf "$out" && mkdir -p "$out/data"
tar xf examples/captcha_digits4.tar -C "$out/data"
captchas=$out/data/captcha_digits4

echo "== every tenth captcha is set aside; the reader never sees it before the end"
awk 'NR % 10 == 0' "$captchas/labels.tsv" > "$captchas/held_out.tsv"
awk 'NR % 10 != 0' "$captchas/labels.tsv" > "$captchas/train.tsv"

echo "== check: what can be used, and what not"
inkmill check "$captchas/train.tsv" -e examples/demo.yaml results_dir="$out"

echo "== train"
inkmill train "$captchas/train.tsv" -e examples/demo.yaml results_dir="$out"

echo "== evaluate on the captchas set aside"
reader=$out/train/best_accuracy.safetensors
inkmill evaluate "$reader" "$captchas/held_out.tsv" results_dir="$out"

echo "== read a few of them"
head -n 5 "$captchas/held_out.tsv" | sed "s|^|$captchas/|; s|\t.*||" > "$out/few.txt"
inkmill infer "$reader" "@$out/few.txt"

python - "$out" $((SECONDS - started)) <<'PYTHON'
import json, sys
out, seconds = sys.argv[1], int(sys.argv[2])
metrics = json.load(open(f"{out}/evaluate/metrics.json"))
print(
    f"demo: {metrics['word_accuracy']:.1%} of {metrics['samples']} held-out captchas read wholly right, in {seconds} s; "
    f"see {out}/evaluate: metrics.json, predictions.csv, errors.html"
)
PYTHON
