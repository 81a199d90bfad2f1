#!/usr/bin/env bash
# Prints what the guest of `make test-aarch64` runs. Each line is a name, a limit in seconds and a command. The argument is the disk's folder.
set -euo pipefail

# Encryption is slow there: the guest's AES instructions are emulated.
agents='PYTHONPATH=/gorail/site:/opt/nixl PYTHONDONTWRITEBYTECODE=1 NIXL_LOG_LEVEL=WARN python3 -m nixl_gorail.two_agents --rounds 2 --mib'
driver=/gorail/tests/driver
# Two processes, rings, credentials, doorbells and mapped memory of GPUs. The other tests copy or spin for long.
cma='no_wakeups near killed stopped ended_unseen holes hostile_ring failed_handshake failed_with_messages closed_ring offloads few_cpus refused
    assist_killed assist_ends overwritten_offers hostile_offers assist_rings ready_ring doorbells early_ring vram_again vram_epochs vram_closed'
cat <<EOF
gorail 60 /gorail/site/nixl_gorail/bin/gorail --version
two-agents-shm 240 GORAIL_PROVIDER=sm $agents 8
two-agents-tcp 240 GORAIL_PROVIDER=tcp GORAIL_DEVICES=lo $agents 8
two-agents-tcp-encrypted 240 GORAIL_PROVIDER=tcp GORAIL_DEVICES=lo GORAIL_ENCRYPTION=on $agents 1
core-random 240 $driver/core 1 3000 && $driver/core 2 3000 && $driver/core 3 2000
core-random-threads 240 $driver/core 5 2000 t && $driver/core 6 2000 t
cma 300 for t in $(echo $cma); do $driver/cma \$t || { echo \$t: status \$?; exit 1; }; done; echo $(echo "$cma" | wc -w) tests
shim 120 $driver/shim && echo its calls, and those of NIXLs with another table
sock-vectors 30 $driver/sock vectors | cmp - $driver/vectors && echo the same bytes as on x86-64
sock-exit 60 $driver/sock exit && echo threads end with the process
sock-threads 240 $driver/sock threads && $driver/sock failing && echo threads, and failing calls of libcrypto
EOF

# The other tests of these packages take longer than the guest has, or want what it lacks: links of kind veth and dummy.
engine="-test.run '^Test(WriteAndRead|Scattered|Empty|Loopback|BothWays|NotifySizes|Snapshot)$'"
tcp="-test.run '^Test(Conform|ConformEncrypted|FlippedFrames|BothWays|UnwritableMemory|UnwritableMemoryEncrypted|BusyPoll|Openings|Places|Turns|DialTurns|Pause|TicketOfTwo|Forgotten|AnswerIsLost|ModelOfOpenings)$'"
topo="-test.skip '^Test(Watch(Bridge|Overrun|Reopens)?|Interfaces|InterfacesShared)$'"
cd "$1/tests"
for test in $(find . -name test -type f | sort); do
    folder=${test#./} && folder=${folder%/test}
    case $folder in
    backend/engine) some=$engine ;;
    backend/provider/tcp) some=$tcp ;;
    backend/topo) some=$topo ;;
    *) some= ;;
    esac
    echo "$folder 300 cd /gorail/src/$folder && /gorail/tests/$folder/test -test.v -test.short -test.timeout 290s $some"
done
