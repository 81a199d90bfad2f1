#!/bin/busybox sh
# The guest's first process, in its initrd. It mounts both disks, runs each line of /gorail/plan ("NAME SECONDS COMMAND"), prints
# "GUEST ok NAME ..." or "GUEST FAILED NAME ..." for each, and powers the guest off.
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
off() { sync && poweroff -f; }
for module in /modules/*.ko; do insmod "$module" || off; done
mount -t ext4 -o ro /dev/vda /root && mount -t ext4 -o ro /dev/vdb /root/gorail || off
cd /root || off
mount -t proc proc proc
mount -t sysfs sysfs sys
mount -t devtmpfs dev dev
mkdir -p dev/pts dev/shm
mount -t devpts devpts dev/pts
mount -t tmpfs -o mode=1777 tmpfs dev/shm
mount -t tmpfs -o mode=1777 tmpfs tmp
mount -t tmpfs -o mode=755 tmpfs run
ip link set lo up
ulimit -l unlimited

seconds() { cut -d. -f1 /proc/uptime; }
# Prints how many Go tests passed and were skipped, or the last line of another program. Tests that have subtests are not counted.
# Fails if no Go test passed.
outcome() {
    tail -n 1 "$1" | grep -qx PASS || { tail -n 1 "$1" && return; }
    awk '/^ *--- (PASS|SKIP): / { for (i = 1; $i != "---"; i++); result[$(i + 2)] = $(i + 1) }
        END { for (name in result) { while (sub(/\/[^\/]*$/, "", name)) inner[name] = 1 }
            for (name in result) if (!(name in inner)) if (result[name] == "PASS:") passed++; else skipped++
            print passed + 0 " tests passed, " skipped + 0 " skipped"; exit !passed }' "$1"
}
while read -r name limit command; do
    began=$(seconds) said=
    setsid chroot . /bin/sh -c "export HOME=/tmp PATH=/usr/sbin:/usr/bin:/sbin:/bin; $command" >tmp/out 2>&1 </dev/null &
    job=$!
    (sleep "$limit" && kill -9 -$job) 2>/dev/null &
    alarm=$!
    wait $job
    status=$?
    if [ $status = 0 ] && said=$(outcome tmp/out); then
        echo "GUEST ok $name: $said, $(($(seconds) - began)) s"
    else
        echo "GUEST FAILED $name with status $status after $(($(seconds) - began)) s${said:+: $said}"
        grep -B 20 -A 5 -E '^ *--- FAIL|^panic:' tmp/out | head -n 80
        tail -n 30 tmp/out
    fi
    kill $alarm 2>/dev/null
done <gorail/plan >/dev/console
echo 'GUEST end' >/dev/console
off
