# Sourced by the scripts that run tests: stages with the time they begin at, Go tests with their durations, a summary.
mkdir -p build/test
rm -f build/test/*.json build/test/*.again
failed=0

stage() { printf '\n== %s (%ds)\n' "$*" "$SECONDS"; }

gotestsum() { go tool -modfile=tools/tools.mod gotestsum "$@"; }

# gotest NAME FLAGS -- PACKAGES: go test, a line a package; the events go to build/test/NAME.json. CI runs up to three failed tests once more: the
# summary names them, for a test that fails now and then shows a defect, of the test or of the code.
gotest() {
    local name=$1 flags=() again=()
    shift
    while [ "$1" != -- ]; do flags+=("$1") && shift; done
    shift
    [ -z "${CI:-}" ] || again=(--rerun-fails=1 --rerun-fails-max-failures=3 --rerun-fails-report "build/test/$name.again")
    gotestsum --format pkgname --format-icons text --format-hide-empty-pkg --hide-summary all --jsonfile "build/test/$name.json" \
        "${again[@]}" --packages "$*" -- "${flags[@]}"
}

# side_by_side COMMAND...: runs each, which is a word or a quoted line, and waits for all.
side_by_side() {
    local pids=() pid
    for command in "$@"; do
        eval "$command" &
        pids+=($!)
    done
    for pid in "${pids[@]}"; do wait "$pid" || failed=1; done
}

# summary: what failed and what was skipped and why, the slowest tests, totals in build/go-test.txt.
summary() {
    stage 'summary'
    gotestsum --raw-command --format standard-quiet --format-hide-empty-pkg -- cat build/test/*.json >build/test/summary.txt || true
    sed -n '/^=== /,$p' build/test/summary.txt
    if cat build/test/*.again 2>/dev/null | grep -q .; then echo 'FAILED ONCE, and passed when run again or not:' && cat build/test/*.again; fi
    echo 'the 20 slowest:'
    cat build/test/*.json | gotestsum tool slowest --num 20 --threshold 1s
    grep '^DONE' build/test/summary.txt | tail -n 1 >build/go-test.txt
    echo "$(cat build/go-test.txt), ${SECONDS}s in all"
    return "$failed"
}
