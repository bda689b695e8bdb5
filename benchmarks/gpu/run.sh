#!/usr/bin/env bash
# Proves and measures the kernels on one NVIDIA GPU: offline, in the active environment, in less than 10 minutes.
# Options are those of report.py; --dry-run needs no GPU.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1
exec "${PYTHON:-python}" "$here/report.py" "$@"
