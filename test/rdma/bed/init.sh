#!/bin/sh
# The guest's first process. Its / is the host's /, read-only. The script mounts a new root with a tmpfs above that /, runs /bed/cmd there
# as root, writes the exit status to /bed/status, and powers the guest off.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb
# Every Debian has Perl; poweroff may be missing. The numbers: x86-64's reboot call, its two magic numbers, power off.
off() { perl -e 'syscall 169, 0xfee1dead, 0x28121969, 0x4321fedc'; }

mount -t proc proc /proc
mount -t tmpfs -o mode=755,size=75% tmpfs /mnt && mkdir /mnt/upper /mnt/work /mnt/root &&
    mount -t overlay -o lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work overlay /mnt/root &&
    cd /mnt/root || off
mount -t proc proc proc
mount -t sysfs sysfs sys
mount -t devtmpfs dev dev
mkdir -p dev/pts dev/shm bed
mount -t devpts devpts dev/pts
mount -t tmpfs -o mode=1777 tmpfs dev/shm
mount -t tmpfs -o mode=755 tmpfs run
mount -t hostfs -o /dev/shm/bed bed bed || off
mount --bind bed/cpuinfo proc/cpuinfo # UML's own cpuinfo has no CPU flags, which programs need to choose their code

ip link set lo up
ulimit -l unlimited
stty -F /dev/tty1 raw -echo
stty -F /dev/tty2 raw -echo
chroot . /bed/cmd </dev/null >/dev/tty1 2>/dev/tty2
echo $? >bed/status
sync bed/status
# stty waits until all output is written.
stty -F /dev/tty1 raw
stty -F /dev/tty2 raw
off
