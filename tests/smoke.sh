#!/usr/bin/env bash
# What must work with the plain install: the commands answer, a small study runs to its report, a rerun starts nothing.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
paribus --help >/dev/null
paribus doctor --json >/dev/null
cp -r experiments/quickstart "$work/small study"
python - "$work/small study/study.yaml" <<'PY'
import pathlib, re, sys
path = pathlib.Path(sys.argv[1])
text = path.read_text()
text = re.sub(r"(?ms)^vary:.*?^(?=\w)", "vary:\n  tuning: [full, lora]\n", text)
text = re.sub(r"seeds: \[.*?\]", "seeds: [0]", text)
text = re.sub(r"epochs: \d+", "epochs: 2", text)
path.write_text(text)
PY
paribus plan "$work/small study" --json >"$work/plan.json"
paribus run "$work/small study" --results "$work/results"
paribus run "$work/small study" --results "$work/results"
paribus table "$work/small study" --results "$work/results" --json | python -c '
import json, sys
rows = json.load(sys.stdin)["rows"]
assert [r["outcome"] for r in rows] == ["finished"] * 3, rows    # full, lora and the control'
