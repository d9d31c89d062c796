#!/bin/sh
# with_oracle.sh MEGATRON ARGUMENTS…: runs Python with the oracles that scripts/bootstrap installs; the test counts
# as skipped (77) without them. MEGATRON is the variable that names the folder of a megatron-core release, or - for none.
if [ -z "$DCKPT_ORACLE_PYTHON" ]; then
  echo "skipped: DCKPT_ORACLE_PYTHON names no Python with torch (scripts/test provides one)"
  exit 77
fi
megatron=$1
shift
if [ "$megatron" != - ]; then
  folder=$(printenv "$megatron")
  if [ -z "$folder" ]; then
    echo "skipped: $megatron names no folder with megatron-core (scripts/test provides one)"
    exit 77
  fi
  export PYTHONPATH="$folder${PYTHONPATH:+:$PYTHONPATH}"
fi
export PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1
exec "$DCKPT_ORACLE_PYTHON" -W ignore "$@"
