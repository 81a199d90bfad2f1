#!/usr/bin/env bash
# Runs all Go tests, except those in guests. Arguments go to go test. End-to-end tests run over tcp and over shared memory, and a few
# over libfabric with imitated devices. With -short the heaviest tests are left out: `go-test.sh later` runs those, in their short form.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/env.sh
. tools/stages.sh

# End-to-end tests that do not use shared memory: tests of libfabric, of the TCP rail, of networks and their rails, tests that set the
# provider (all of GPU memory), and tests that need a stopped target to block transfers.
not_sm='^Test(Failover|StoppedOverTwoRails|TwoHosts|WireCut|Devices|Rail.*|Fabric.*|TransferTimeout|Memory.*|OneHost.*|Links|Slices|Firewall.*|DataPort.*|Unauthenticated.*|Matrix|ErrorMeansQuiet|History.*|IdleConnectionCut|VRAM.*|Staged.*|ManyGPUs|NVLink.*|ChildrenInheritNothing|HostActs.*|AbsentMemory|LongLink.*|Encryption|Threads.*|RegisteredAnew|AnewEndsWait|Overlap|OverlapInFlight|MTU.*|Address.*|Remapped.*|OrdinaryLifeIsQuiet|Floods|NoAllocations|UCX.*|Ranks.*|Cut|CutAddress|Compression.*)$'

# End-to-end tests over libfabric with imitated EFA devices: bytes, notifications, a killed peer. tools/test-fabrics.sh has more of them.
libfabric='^Test(TwoAgentsOneProcess|Sizes|NotifAfterData|BothDirections|KillInFlight)$'

# End-to-end tests of agents in pods of one node, each in all namespaces of its own. The long form runs all that make sense, and in containers of one pod, too.
# TestDeadPeer knows a process by its number, TestLogFile names a file by it, and TestTargetExecutes sets provider=sm, whose listener stays within its namespace.
pods='^Test(Sizes|NotifAfterData|BothDirections|StoppedPeers|KillInFlight|Restart|ReloadInFlight|Asleep.*|VRAMTwoProcesses|VRAMHandles|VRAMHiddenGPU|VRAMUnknownHandle|Staged|ManyGPUs)$'
case " $* " in
*' -short '*)
    # TestPods, TestPodKilled, TestHistory and TestMatrix have these, too.
    pods=${pods/'Sizes|'/} pods=${pods/'BothDirections|StoppedPeers|KillInFlight|'/} pods=${pods/'|Staged|ManyGPUs'/}
    # Tests of pods choose their providers, and what follows does not depend on one.
    # Neither does what is about the control channel or about an agent's life alone. TestHistory and TestMemoryTargetStopped stop and kill peers over shared memory.
    short_sm='|^Test(Pod.*|FIPS|ForeignPeer|AnotherTable|Identity|Stats.*|StuckLog|LogFile|BadOptions|CorruptMetadata|PartialMetadata|BackendOfRequest|PreparedHuge|FreshAgents|AgentsComeAndGo|PeersComeAndGo|ManyAgentsOneProcess|NotifManySenders|ConnectEarly|IdleCPU|ThreadEnds|Stopped.*|RemoveDelivers|CloseDelivers|DestroyedAfterSleep|NoDescriptors.*|BigReservation|DeadPeer|SilentPeer|Reload|RestartInitiator|LeavesBehindPost)$'
    ;;
*) pods=. ;;
esac
not_pods="${not_sm/"|VRAM.*|Staged.*|ManyGPUs"/}|^Test(Pod.*|DeadPeer|LogFile|TargetExecutes)\$"

# Most of the processor time of the short form, for promises that other tests hold on to in part. `go-test.sh later` also has more packages with the race detector, the
# shim with sanitizers, and the walk of failpoints. make test-all has all of it, in both forms.
later='^Test(MemoryGivenBack.*|AbsentMemory|ErrorMeansQuiet|VRAMReload|VRAMEveryCallFails|VRAMRegisteredAnew|VRAMOverlap.*|Remapped|FloodOfFewDescriptors|UnloadedThenRevoked|RefusedCalls|SmallFiles|ExamplesKilled|NoAllocations|Setups|RateOfAnyNumberOfSources|Pods|PodsMapped|RemappedAsleep|WireCut|MemoryAssistantStopped|VRAMHandles|StoppedPeerBesideOthers|HistoryGPU|Floods|Processes|Tables|Sanitized|PackSanitized|TrafficImitated|TrafficSharedEndpoint|StuckGPUEnds|ConformMapped|Scatter|PodsRun|History|HostActs|HostActsNewPeer|HostActsFirst|Matrix|Overlap|OverlapInFlight|StoppedPeers|FabricControlLost|FabricLostSends|VRAMReleased|AddressGone|AddressReplaced|StagedWhileMapping|LongLink|Threads|Scattered|ManyGPUs|PodKilled|PodsFolder|PeersComeAndGo|AgentsComeAndGo|NoDescriptorsToConnect|FloodOfAnotherUser|Examples|ExamplesRefuse|WeightsLayouts|Calls|WritesToSockets|Sigpipe|Together|Signals|Gperftools|HostFaults|SignalStorm|SilentPeer|StuckStagingEngineCloses|StuckGPUWithin|StuckGPUDeregistersMany|StageFailures|RailDies|StudyRails|StudyKVPeer|StudyFullDisk|BenchTargetDies|BenchBlocks|TablesMutated|OneHost|OneHostDescriptors|Staged|DeregisteredBehindPost|Identity|LeavesBehindPost|RegisteredAnew|RemoveDelivers|NotifBig|StuckLog|LongLinkBytes|RailLate|ManyRegions|PreparedHuge|AddressGonePosts|VRAMHiddenGPU|VRAMOtherVisibleGPU|MTU|FreshAgents|FabricTwoHosts|DestroyedAfterSleep|UnauthenticatedAtTheRails|MatrixVerbs|FlippedBits|PeerKilledAndLoadedAgain|StuckGPUMappedEngineCloses|DisturbedRecords|LingeringIsBounded|StuckNotification|NotificationsOfAllPeers|VerbsVRAM|EarlyRevokesAreBounded|BenchCompare|BenchOtherVersion|BenchGPUs|StudyKV|StudyCampaign|StudyPeers|StudyWeek|StudyWeights|TopOfAgents|PeerText|ListenToken|PluginFolder|Breaches|SetUpFaults|PairsShared|RandomReplays|Undefined|TwoHosts|RanksOfManyDevices|WideFaults)$'
# The walk of failpoints is built with their tag: a short one over one fabric. All of them are a stage of make test-all.
failpoints='gotest failpoints $flags -count=1 -tags failpoints -run "^TestFailpoints" -timeout 25m -- ./backend/engine'
none='^$'
# Test binaries with the race detector sleep for a second when they end, unless told not to.
export GORACE='atexit_sleep_ms=50'
# The race detector has something to find only where goroutines are. With -short it looks at the plugin's own logic. The tool's packages, and the providers whose
# tests wait for processes, come later: 96 s of processor time to compile all, 47 s for shm/ipc alone.
all_race=$(tools/packages.sh race)
own_race=$(grep '^gorail/backend/' <<<"$all_race" | grep -v /provider/)
race='gotest race $flags -race -skip "$later" -p 2 -timeout 15m -- $own_race'
more_race='gotest more-race $flags -race -skip "$later" -p 3 -timeout 15m -- $(grep -vxF "$own_race" <<<"$all_race")'
# The shim's test with sanitizers takes 24 s of processor time to compile.
shim='meson test -C build --print-errorlogs host-sanitized'
if [ "${1:-}" = later ]; then
    flags="-vet=off -short -count=1 -parallel 8 -timeout 25m"
    # shellcheck disable=SC2034
    others=$(grep -rlE "^func ${later//[\^\$]/}\\(" --include=*_test.go backend gorail test | sed 's,^,./,; s,/[^/]*$,,' | sort -u |
        grep -vxE './(backend/engine|test/e2e|test/rdma.*)')
    lanes 2 'gotest later-engine $flags -run "$later" -- ./backend/engine' \
        'gotest later-e2e $flags -run "$later" -- ./test/e2e' \
        'gotest later-rest $flags -p 1 -run "$later" -- $others' "$failpoints" "$more_race" "$shim"
    exit "$failed"
fi
case " $* " in *' -short '*) ;; *) later=$none ;; esac

stage 'go test'
# shellcheck disable=SC2034,SC2046
flags=$*
# tools/static.sh runs go vet.
flags="-vet=off $flags"
rest=$(tools/packages.sh rest)
outer=$(grep -E '^gorail/(test|gorail)(/|$)' <<<"$rest" | grep -v test/e2e)
# The long form of gorail/doctor/broken is a stage of make test-all.
case " $* " in *' -short '*) ;; *) outer=$(grep -v doctor/broken <<<"$outer") ;; esac
sm="$not_sm${short_sm:-}|$later"
inner='gotest rest $flags -count=1 -skip "$later" -p 2 -parallel 8 -timeout 25m -- $(grep -vE "^gorail/(test|gorail)(/|\$)" <<<"$rest")'
e2e='gotest e2e $flags -count=1 -skip "$later" -parallel 6 -timeout 25m -- ./test/e2e'
in_pods='gotest "e2e-$w" $flags -count=1 -parallel 6 -timeout 25m -run "$pods" -skip "$not_pods" -- ./test/e2e'
over_sm='GORAIL_PROVIDER=sm gotest e2e-sm $flags -count=1 -parallel 6 -timeout 25m -skip "$sm" -- ./test/e2e'
outer_tests='gotest outer $flags -count=1 -skip "$later" -p 2 -parallel 8 -timeout 25m -- $outer'
# Each end-to-end test is in the lists of make test-rdma, which runs seldom.
lists='gotest lists $flags -count=1 -run "^TestLists\$" -- ./test/rdma'
# shellcheck disable=SC2046
go run $(like_plugin) ./test/fabric/make build/test/libfabric.so.1 || true # without libfabric the tests say so
over_libfabric='GORAIL_LIBFABRIC_PATH=$PWD/build/test/libfabric.so.1 GORAIL_PROVIDER=efa GORAIL_CONTROL_DEVICES=lo GORAIL_FABRIC=kind=efa,rails=4,seed=2 \
    gotest e2e-libfabric $flags -count=1 -parallel 3 -timeout 25m -run "$libfabric" -- ./test/e2e'
case " $* " in
*' -short '*) # the longest first, so that all processors are busy until the end
    plain='gotest plain $flags -skip "$later" -p 2 -timeout 15m -- $(tools/packages.sh pure | grep -vxF "$own_race")'
    lanes 2 "$inner" "$e2e" "$race" "$outer_tests" "$plain" "$over_sm" "w=pods; GORAIL_TEST_WALLS=pods $in_pods" "$over_libfabric" "$lists"
    ;;
*) # two lanes of equal length on two cores, and a short one that mostly waits
    pure="$race || e=1; $more_race || e=1; "'gotest plain $flags -skip "$later" -p 3 -timeout 15m -- $(tools/packages.sh plain) || e=1; exit ${e:-0}'
    side_by_side \
        "($pure) || e=1; $inner || e=1; exit \${e:-0}" \
        "$e2e || e=1; for w in pods containers; do GORAIL_TEST_WALLS=\$w $in_pods || e=1; done; $over_sm || e=1; $outer_tests || e=1; exit \${e:-0}" \
        "$over_libfabric || e=1; $lists || e=1; $shim || e=1; exit \${e:-0}"
    ;;
esac
exit "$failed"
