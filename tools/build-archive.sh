#!/usr/bin/env bash
# Builds the Go half as a C archive for meson, and tells ninja what it was made of. Outputs that did not change are left
# alone, time stamp included.
set -euo pipefail

while [ $# -gt 0 ]; do
    case $1 in
    --src) src=$2 ;;
    --archive) archive=$(realpath -m "$2") ;;
    --header) header=$(realpath -m "$2") ;;
    --depfile) depfile=$(realpath -m "$2") target=plugin/libgorail.a ;;
    --version) version=$2 ;;
    --tags) tags=$2 ;;
    --go) go=$2 ;;
    *) echo "build-archive.sh: unknown argument $1" >&2 && exit 2 ;;
    esac
    shift 2
done

work=$(mktemp -d "$(dirname "$archive")/archive.XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$src"

"$go" build -buildmode=c-archive -trimpath -buildvcs=false -tags "$tags" -ldflags "-w -X main.version=$version" \
    -o "$work/libgorail.a" ./plugin

place() { cmp -s "$1" "$2" || mv "$1" "$2"; }
place "$work/libgorail.a" "$archive"
place "$work/libgorail.h" "$header"

# Folders are listed too: a new file changes its folder's time stamp.
{
    printf '%s:' "$target"
    "$go" list -deps -tags "$tags" -f '{{if and .Module .Module.Main}}{{$d := .Dir}}{{$d}}
{{range .GoFiles}}{{$d}}/{{.}}
{{end}}{{range .CgoFiles}}{{$d}}/{{.}}
{{end}}{{range .CFiles}}{{$d}}/{{.}}
{{end}}{{range .HFiles}}{{$d}}/{{.}}
{{end}}{{range .EmbedFiles}}{{$d}}/{{.}}
{{end}}{{end}}' ./plugin | sed '/^$/d; s/ /\\ /g' | while read -r f; do printf ' \\\n %s' "$f"; done
    printf ' \\\n %s \\\n %s\n' "$src/go.mod" "$src/go.sum"
} >"$depfile"
