#!/usr/bin/env bash
# Writes the prototypes of the plugin's exports, as cgo has them. Arguments: the go command, the header.
set -euo pipefail
go=$1 header=$(realpath -m "$2")
cd "$(dirname "$0")/../plugin"
work=$(mktemp -d "$header.XXXXXX")
trap 'rm -rf "$work"' EXIT
mapfile -t files < <(GOWORK=off "$go" list -f '{{join .CgoFiles "\n"}}')
mapfile -t flags < <(GOWORK=off "$go" list -f '{{join .CgoCFLAGS "\n"}}')
"$go" tool cgo -importpath gorail/plugin -objdir "$work" -exportheader "$work/header.h" -- "${flags[@]}" "${files[@]}"
cmp -s "$work/header.h" "$header" || mv "$work/header.h" "$header"
