#!/usr/bin/env bash
# Links the Go part and the C++ shim into the plugin, and writes the list of sources for ninja. Go's linker does it,
# because only it writes the checksum that GODEBUG=fips140=on verifies; a C archive has no checksum. An unchanged output
# keeps its time stamp. Arguments after -- go to the C++ linker.
set -euo pipefail

while [ $# -gt 0 ]; do
    case $1 in
    --src) src=$2 ;;
    --plugin) plugin=$(realpath -m "$2") ;;
    --depfile) depfile=$(realpath -m "$2") target=$2 && target=${target%.d}.so ;;
    --shim) shim=$(realpath -m "$2") ;;
    --map) map=$(realpath -m "$2") ;;
    --version) version=$2 ;;
    --tags) tags=$2 ;;
    --go) go=$2 ;;
    --overlay) overlay=$(realpath "$2") ;; # what internal/runtimeoverlay has printed
    --) shift && break ;;
    *) echo "build-plugin.sh: unknown argument $1" >&2 && exit 2 ;;
    esac
    shift 2
done

work=$(mktemp -d "$(dirname "$plugin")/plugin.XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$src"

# nodelete: Go's runtime cannot be unloaded. Bsymbolic and the version script: the host process and the plugin do not
# replace each other's symbols.
flags=()
for f in -Wl,--whole-archive "$shim" -Wl,--no-whole-archive "-Wl,--version-script=$map" \
    -Wl,--wrap=pthread_create -Wl,-Bsymbolic -Wl,-z,nodelete -Wl,-z,defs -Wl,-z,relro -pthread -ldl "$@"; do
    flags+=("\"$f\"")
done

# buildid=: the id would depend on the folder of this tree, through the flags.
tools/go-build.sh "$overlay" -buildmode=c-shared -tags "$tags" \
    -ldflags "-w -buildid= -X gorail/plugin.version=$version -linkmode external '-extld=$CXX' '-extldflags=${flags[*]}'" \
    -o "$work/libgorail.so" ./plugin/so

cmp -s "$work/libgorail.so" "$plugin" || mv "$work/libgorail.so" "$plugin"

# The list has folders, too: a new file changes its folder's time stamp.
{
    printf '%s:' "$target"
    GOWORK=off "$go" list -deps -tags "$tags" -f '{{if and .Module .Module.Main}}{{$d := .Dir}}{{$d}}
{{range .GoFiles}}{{$d}}/{{.}}
{{end}}{{range .CgoFiles}}{{$d}}/{{.}}
{{end}}{{range .CFiles}}{{$d}}/{{.}}
{{end}}{{range .HFiles}}{{$d}}/{{.}}
{{end}}{{range .EmbedFiles}}{{$d}}/{{.}}
{{end}}{{end}}' ./plugin/so | sed '/^$/d; s/ /\\ /g' | while read -r f; do printf ' \\\n %s' "$f"; done
    printf ' \\\n %s' "$src"/internal/runtimeoverlay/*.py "$src/go.mod" "$src/go.sum"
    printf '\n'
} >"$depfile"
