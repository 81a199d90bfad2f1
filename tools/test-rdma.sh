#!/usr/bin/env bash
# `make test-rdma`: tests over software RDMA devices in guests (test/rdma), one after the other. Arguments go to `go test`:
# -short runs one test of each kind. After the kernel is built, a missing requirement is a failure, not a skip.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/env.sh

tools/rdma-kernel.sh
CI=${CI:-1} go test -v -p 1 -count=1 -timeout 170m "$@" ./test/rdma/...
