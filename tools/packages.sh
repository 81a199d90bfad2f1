#!/usr/bin/env bash
# Lists packages of the module: "packages.sh pure" those that reach no cgo package of ours (they can be tested without
# any hardware or library), "packages.sh rest" the others.
set -euo pipefail
cd "$(dirname "$0")/.."

cgo=$(go list -f '{{if .CgoFiles}}{{.ImportPath}}{{end}}' ./... | sort)
go list -f '{{.ImportPath}} {{join .Deps " "}} {{join .TestImports " "}} {{join .XTestImports " "}}' ./... |
    while read -r pkg deps; do
        kind=pure
        if printf '%s\n' "$pkg" $deps | sort | comm -12 - <(echo "$cgo") | grep ^gorail/ >/dev/null; then
            kind=rest
        fi
        # Guests need a kernel of their own: make test-rdma.
        case $pkg in gorail/test/rdma*) continue ;; esac
        # What is under test/ needs NIXL, whatever it imports.
        case $pkg in gorail/test/*) kind=rest ;; esac
        if [ "$kind" = "$1" ]; then echo "$pkg"; fi
    done
