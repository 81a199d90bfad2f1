#!/usr/bin/env bash
# `make test-rdma`: tests over software RDMA devices in guests (test/rdma), one after the other; arguments go to `go test`. With
# -short it is a part, of each kind of test one.
# What is missing after the kernel was built is a failure, not a skip.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/env.sh

tools/rdma-kernel.sh
CI=${CI:-1} go test -v -p 1 -count=1 -timeout 170m "$@" ./test/rdma/...
