#!/usr/bin/env bash
# Prints what the guest of `make test-aarch64` runs. Each line is a name, a limit in seconds and a command. The argument is the disk's folder.
set -euo pipefail

# Encryption is slow there: the guest's AES instructions are emulated.
agents='PYTHONPATH=/gorail/site:/opt/nixl PYTHONDONTWRITEBYTECODE=1 NIXL_LOG_LEVEL=WARN python3 -m nixl_gorail.two_agents --rounds 2 --mib'
driver=/gorail/tests/driver
cat <<END
gorail 60 /gorail/site/nixl_gorail/bin/gorail --version
two-agents-shm 240 GORAIL_PROVIDER=sm $agents 8
two-agents-tcp 240 GORAIL_PROVIDER=tcp GORAIL_DEVICES=lo $agents 8
two-agents-tcp-encrypted 240 GORAIL_PROVIDER=tcp GORAIL_DEVICES=lo GORAIL_ENCRYPTION=on $agents 1
core-random 240 $driver/core 1 3000 && $driver/core 2 3000 && $driver/core 3 2000
core-random-threads 240 $driver/core 5 2000 t && $driver/core 6 2000 t
core-scenarios 300 for s in late_join join_twice lost_sends probe_without_credit too_many held_back held_back_large gathered down_and_up; do $driver/core \$s || exit 1; done; echo 9 scenarios
cma-processes 400 n=0 s=0; for t in \$($driver/cma); do $driver/cma \$t; case \$? in 0) n=\$((n + 1));; 77) s=\$((s + 1));; *) echo \$t; exit 1;; esac; done; [ \$n -gt 20 ] && echo \$n tests, \$s skipped
sock-threads 120 $driver/sock threads && $driver/sock failing
sock-exit 60 $driver/sock exit
END

# The other tests of the engine take longer than the guest has.
engine="-test.run '^Test(WriteAndRead|Scattered|HugeCount|Empty|Repost|Loopback|BothWays|NotifySizes|TransferNotifySizes|NotifyOrder|ManyNotifications|BackPressure|Snapshot)$'"
cd "$1/tests"
for test in $(find . -name test -type f | sort); do
    folder=${test#./} && folder=${folder%/test}
    only= && [ "$folder" != backend/engine ] || only=$engine
    echo "$folder 300 cd /gorail/src/$folder && /gorail/tests/$folder/test -test.v -test.short -test.timeout 290s $only"
done
