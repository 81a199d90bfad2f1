#!/usr/bin/env bash
# `make dist`: writes the files of a release into dist: the wheels, the source archive, one SBOM for each Go program, and SHA256SUMS.
# `tools/dist.sh check` (`make test-dist`) also checks them: tools/wheel/check.sh, and a second build from the source archive, in
# another folder, that must give the same bytes. docs/packaging.md, "A release", says more.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD

. tools/apt.sh
fail() { echo "dist: $*" >&2 && exit 1; }
version=$(cat VERSION)
name=nixl-gorail-$version
cyclonedx=v1.10.0

# sbom MODULE PACKAGE NAME writes dist/NAME.cdx.json: the modules in one program. Both architectures have the same modules, or the build fails.
sbom() {
    local arch dir=.cache/sbom
    mkdir -p "$dir"
    # Built for this machine, because GOARCH below would build the tool for the other one.
    if ! [ -x "$dir/$cyclonedx/cyclonedx-gomod" ]; then
        say "building cyclonedx-gomod $cyclonedx"
        GOBIN=$root/$dir/$cyclonedx GOWORK=off GOFLAGS=-mod=mod go install "github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@$cyclonedx"
    fi
    for arch in amd64 arm64; do
        GOOS=linux GOARCH=$arch CGO_ENABLED=1 GOFLAGS=-buildvcs=false "$dir/$cyclonedx/cyclonedx-gomod" app -main "$2" \
            -json -noserial -licenses -std -output "$dir/$arch.json" "$1" 2>"$dir/log" || { cat "$dir/log" >&2 && fail "no SBOM of $3"; }
        python3 tools/sbom.py "$dir/$arch.json" "$version" >"$dir/$arch.cdx.json"
    done
    cmp "$dir/amd64.cdx.json" "$dir/arm64.cdx.json" || fail "$3 has other modules on arm64 than on amd64: write one SBOM for each"
    cp "$dir/amd64.cdx.json" "dist/$3.cdx.json"
}

build() {
    mkdir -p dist
    rm -rf build/wheel-* dist/nixl_gorail-* dist/nixl-gorail-* dist/SHA256SUMS
    tools/wheel/build.sh
    git -c tar.umask=0022 archive --format=tar --prefix="$name/" "$commit" | gzip -n9 >"dist/$name.tar.gz"
    sbom . plugin "$name.plugin"
    sbom gorail . "$name.gorail"
    (cd dist && sha256sum nixl_gorail-* nixl-gorail-* >SHA256SUMS)
}

git rev-parse --git-dir >/dev/null 2>&1 || fail 'this is no git checkout: the source archive is made of a commit'
commit=$(git rev-parse HEAD) # a later commit does not count
dirty=$(git status --porcelain)
case ${1:-} in
'')
    for tag in $(git tag --points-at HEAD --list 'v*'); do
        [ "$tag" = "v$version" ] || fail "this commit has the tag $tag, and VERSION says $version"
    done
    ! grep -q "^## $version (unreleased)" CHANGELOG.md || say "warning: CHANGELOG.md says that $version is unreleased"
    [ -z "$dirty" ] || fail "uncommitted changes would be in the wheels and not in the source archive: commit or remove them: $dirty"
    build
    ls -l dist
    exit
    ;;
check) [ -z "$dirty" ] || say "warning: uncommitted changes are in the wheels and not in the source archive: $dirty" ;;
*) fail "unknown argument $1: use 'tools/dist.sh' or 'tools/dist.sh check'" ;;
esac

build
tools/wheel/check.sh
tools/wheel/image.sh

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tar xzf "dist/$name.tar.gz" -C "$work"
copy=$work/$name
mkdir "$copy/.cache"
ln -s "$root/.venv" "$copy/.venv"
ln -s "$root/.cache/zig" "$copy/.cache/zig"

"$copy/tools/build.sh" >"$work/build.log" 2>&1 || { tail -30 "$work/build.log" >&2 && fail 'the source archive does not build'; }
[ "$("$copy/build/gorail" version)" = "gorail $version" ] || fail "the source archive's gorail says $("$copy/build/gorail" version), VERSION says $version"
say 'the source archive builds'

cp dist/SHA256SUMS "$work/first"
"$copy/tools/wheel/build.sh"
(cd "$copy/dist" && sha256sum -- *.whl) >"$work/wheels"
grep '\.whl$' "$work/first" | diff - "$work/wheels" || fail 'the wheels of two builds differ'
build
diff "$work/first" dist/SHA256SUMS || fail 'two builds differ'
(cd dist && sha256sum --quiet -c SHA256SUMS)
say "$(wc -l <dist/SHA256SUMS) files have the same bytes in two builds"
