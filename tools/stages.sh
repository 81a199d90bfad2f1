# Sourced by the scripts that run tests: stages with their start times, Go tests with their durations, a summary.
mkdir -p build/test
rm -f build/test/*.json build/test/*.again build/test/*.time
failed=0

stage() { printf '\n== %s (%ds)\n' "$*" "$SECONDS"; }

. tools/go-flags.sh

# The tools of tests have a go.mod of their own, which is none of go.work's.
gotestsum() { "$(GOWORK=off go tool -n -modfile=tools/tools.mod gotestsum)" "$@"; }

# gotest NAME FLAGS -- PACKAGES: runs go test with one line of output for each package. The events go to
# build/test/NAME.json. CI runs up to three failed tests once more, which tells a defect that always shows from one that
# shows sometimes. The run fails in both cases, and the summary has the output of both attempts.
gotest() {
    local name=$1 flags=() again=()
    shift
    while [ "$1" != -- ]; do flags+=("$1") && shift; done
    shift
    [ -z "${CI:-}" ] || again=(--rerun-fails=1 --rerun-fails-max-failures=3 --rerun-fails-report "build/test/$name.again")
    # shellcheck disable=SC2207
    case " ${flags[*]} " in *' -race '*) ;; *) flags+=($(like_plugin)) ;; esac
    local TIMEFORMAT="$name: %R s, processor time %U + %S s"
    {
        time gotestsum --format pkgname --format-icons text --format-hide-empty-pkg --hide-summary all \
            --jsonfile "build/test/$name.json" "${again[@]}" --packages "$*" -- "${flags[@]}" 2>&3
    } 3>&2 2>"build/test/$name.time"
}

# side_by_side COMMAND...: runs all commands at the same time and waits for them. A command is a quoted shell line.
side_by_side() {
    local pids=() pid
    for command in "$@"; do
        eval "$command" &
        pids+=($!)
    done
    for pid in "${pids[@]}"; do wait "$pid" || failed=1; done
}

# lanes N COMMAND...: runs all commands, N at the same time, in this order. A command is a quoted shell line.
lanes() {
    local most=$1 running=0 command
    shift
    for command in "$@"; do
        if [ "$running" = "$most" ]; then
            wait -n || failed=1
            running=$((running - 1))
        fi
        eval "$command" &
        running=$((running + 1))
    done
    while [ "$running" -gt 0 ]; do
        wait -n || failed=1
        running=$((running - 1))
    done
}

# summary: prints failed and skipped tests with the reasons, the slowest tests and the totals. build/go-test.txt has the
# totals, too.
summary() {
    stage 'summary'
    if ! compgen -G 'build/test/*.json' >/dev/null; then
        echo "no stage with Go tests ran, ${SECONDS}s in all"
        return "$failed"
    fi
    gotestsum --raw-command --format standard-quiet --format-hide-empty-pkg -- cat build/test/*.json >build/test/summary.txt || true
    sed -n '/^=== /,$p' build/test/summary.txt
    if cat build/test/*.again 2>/dev/null | grep -q .; then
        failed=1
        echo 'FAILED, and run again only to see whether it always fails:' && cat build/test/*.again
    fi
    echo 'stages of Go tests:' && cat build/test/*.time
    echo 'the 20 slowest tests:'
    cat build/test/*.json | gotestsum tool slowest --num 20 --threshold 1s
    grep '^DONE' build/test/summary.txt | tail -n 1 >build/go-test.txt
    echo "$(cat build/go-test.txt), ${SECONDS}s in all"
    return "$failed"
}
