#!/bin/sh
# with_launchers.sh ARGUMENTS…: runs Python with what starts workers (Ray, the client of Kubernetes), where
# scripts/bootstrap has installed it.
export PYTHONDONTWRITEBYTECODE=1
exec "${DCKPT_LAUNCHERS_PYTHON:-python3}" -W ignore "$@"
