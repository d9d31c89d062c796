#!/bin/sh
# with_oracle.sh PACKAGES ARGUMENTS…: runs Python with the oracles that scripts/bootstrap installs; the test counts
# as skipped (77) without them. PACKAGES is the variable that names a folder of packages (a megatron-core release, or
# transformers), or - for none.
if [ -z "$DCKPT_ORACLE_PYTHON" ]; then
  echo "skipped: DCKPT_ORACLE_PYTHON names no Python with torch (scripts/test provides one)"
  exit 77
fi
packages=$1
shift
if [ "$packages" != - ]; then
  folder=$(printenv "$packages")
  if [ -z "$folder" ]; then
    echo "skipped: $packages names no folder of packages (scripts/test provides one)"
    exit 77
  fi
  export PYTHONPATH="$folder${PYTHONPATH:+:$PYTHONPATH}"
fi
# No compiler of torch: it needs Python's headers, and compiles longer than the tests run.
export PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1 TORCHDYNAMO_DISABLE=1
exec "$DCKPT_ORACLE_PYTHON" -W ignore "$@"
