#!/usr/bin/env bash
# The measurements on a machine with a GPU and without a network, stage by stage.
#
#   bash capture/core/h200.sh STAGE[=SECONDS] ...
#
# Needs in the repository: .whl (wheels of what the machine lacks), .model/0 and .model/1 (halves of
# the wheel of SmolLM2). What a stage finds goes to $WORK/out, and all of it, after every stage, to
# $OUT/results.tar.xz. A stage that fails or runs out of its SECONDS does not keep the next ones
# from running; the status is 1 then.
set -u
WORK=${WORK:-/tmp/core-h200}
OUT=${OUT:-$WORK}
export PYTHONPATH=$WORK/site TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1 PYTHONUNBUFFERED=1 TZ=UTC
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-8}
FOUND=$WORK/out
MODEL=${MODEL:-build/smollm2}
RUN_FILE=${RUN_FILE:-capture/core/examples/gpu.toml}
mkdir -p "$FOUND" "$WORK/model"

# Core imports cached_path, which needs two cloud libraries; paths here are all local.
site() {
  [ -f "$WORK/site/cached_path/schemes.py" ] && return 0
  python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade \
    --target "$WORK/site" .whl/*.whl || return 1
  mkdir -p "$WORK/site/cached_path"
  cat > "$WORK/site/cached_path/__init__.py" <<'PY'
"""Stand-in for cached_path: local paths only."""

from pathlib import Path


def cached_path(url_or_filename, **settings):
    return Path(url_or_filename)
PY
  cat > "$WORK/site/cached_path/schemes.py" <<'PY'
"""Stand-in for cached_path.schemes."""


class SchemeClient:
    recoverable_errors = ()


class S3Client(SchemeClient):
    pass


def add_scheme_client(client):
    pass
PY
}

facts() {
  nvidia-smi --query-gpu=name,driver_version,memory.total,memory.used --format=csv,noheader
  python3 -m pip list 2> /dev/null | grep -i -E \
    '^(ai2-olmo-core|torch|transformers|trl|triton|accelerate|datasets|numpy|pyarrow|pydantic) '
  python3 -c 'from trl import GRPOTrainer'
  python3 -m capture.core runtime
}

stash() { mkdir -p "$WORK/model/$1" && cp .model/"$1"/* "$WORK/model/$1/"; }

model() {
  [ -f $MODEL/config.json ] && return 0
  python3 -m capture.core smollm2 --from "$WORK"/model/0/* "$WORK"/model/1/* --to $MODEL
}

experiment() {
  local name=$1
  shift
  python3 -m "capture.core.experiments.$name" --device cuda --out "$FOUND/$name.jsonl" "$@"
}

# Samples of the GPU's clock every two seconds, until the stage ends; the id is in `clock` then.
sample() {
  nvidia-smi -l 2 --format=csv,nounits -f "$1/gpu-samples.csv" \
    --query-gpu=timestamp,utilization.gpu,clocks.sm,power.draw,temperature.gpu,memory.used &
  clock=$!
}

# A run of the example, alone on the GPU, with a sample of the clock every two seconds beside it.
example() {
  local name=$1 clock
  shift
  mkdir -p "$FOUND/$name"
  nvidia-smi --query-compute-apps=pid --format=csv,noheader > "$FOUND/$name/others.txt"
  sample "$FOUND/$name"
  # also when the time is up: what was written is kept
  trap 'kill '$clock'; cp "$WORK/run-'"$name"'"/*.log "$WORK/run-'"$name"'"/*.jsonl \
    "$FOUND/'"$name"'/"; rm -rf "$WORK/run-'"$name"'"' EXIT
  python3 -m capture.core run "$RUN_FILE" --set miles.save="$WORK/run-$name" \
    --set miles.keep_checkpoints=1 "$@"
}

stage() {
  case $1 in
    site) site && facts ;;
    facts) facts ;;
    stash0) stash 0 ;;
    stash1) stash 1 ;;
    model) model ;;
    heads) experiment fp32_head --seeds 0 ;;
    replay) experiment replay ;;
    gap) experiment gap --model $MODEL ;;
    packing) experiment packing --model $MODEL ;;
    speed)
      python3 -m capture.core.experiments.decode_speed $MODEL --device cuda --prompt 384 --new 96 \
        | tee "$FOUND/decode_speed.jsonl"
      ;;
    smoke) example smoke --set rollout.num_rollout=3 --set evaluation.interval=0 ;;
    seed*) example "gpu_s${1#seed}" --seed "${1#seed}" ;;
    compare)
      mkdir -p "$FOUND/peer"
      sample "$FOUND/peer"
      trap 'kill '$clock EXIT
      python3 -m capture.core.peer.compare "$RUN_FILE" --out "$FOUND/peer" \
        --seconds "${SECONDS_LEFT:-540}"
      ;;
    *)
      echo "h200: $1: no such stage" >&2
      return 2
      ;;
  esac
}

if [ "${STAGE_ONLY:-}" ]; then
  stage "$STAGE_ONLY"
  exit $?
fi
worst=0
for word in "$@"; do
  name=${word%%=*}
  limit=${word#*=}
  [ "$limit" = "$word" ] && limit=570
  echo "== $name"
  began=$SECONDS
  STAGE_ONLY=$name SECONDS_LEFT=$limit timeout -k 10 "$limit" bash "$0" 2>&1 \
    | tee "$FOUND/$name.out" | tail -n 12
  status=${PIPESTATUS[0]}
  [ "$status" = 0 ] || worst=1
  echo "== $name: status $status, $((SECONDS - began)) s"
  tar -C "$WORK" -cJf "$OUT/results.tar.xz" out
done
exit $worst
