#!/usr/bin/env bash
# Lists the folders of the Go packages that `make test-aarch64` tests: those that depend on layouts in memory, byte orders or system calls.
# The other packages do the same on each architecture.
set -euo pipefail
cd "$(dirname "$0")/../.."

# Of the packages with C code: what needs neither a library of the system nor a compiler.
with_c='backend/core backend/engine backend/limits backend/provider/shm backend/provider/tcp test/fake'
# peer's logic is two agents' too. hosts makes namespaces, with links that the guest has not. The others read files, or digests.
no_need='/(backend/(peer|trust)|gorail/plugindir|gorail/study/kv/hosts|internal/structure)$'

printf './%s\n' $with_c
# shellcheck disable=SC2046
go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{range .Imports}} {{.}}{{end}}{{end}}' $(tools/packages.sh pure | grep -vE "$no_need") |
    grep -E ' (unsafe|encoding/binary|golang.org/x/sys/unix)( |$)' | sed -E 's,^gorail/([^ ]*).*,./\1,'
