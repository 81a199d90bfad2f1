#!/bin/sh
# The guest's first process. Its / is the host's, read-only: builds a root with a tmpfs above it, runs /bed/cmd there as
# root, leaves the exit status in /bed/status, and switches the guest off.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb
# Perl is on every Debian, poweroff is not. The numbers: x86-64's reboot, its two magic ones, power off.
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
mount --bind bed/cpuinfo proc/cpuinfo # UML's own has no flags, and programs choose their code by them

ip link set lo up
ulimit -l unlimited
stty -F /dev/tty1 raw -echo
stty -F /dev/tty2 raw -echo
chroot . /bed/cmd </dev/null >/dev/tty1 2>/dev/tty2
echo $? >bed/status
sync bed/status
# Setting anything waits until what was written is out.
stty -F /dev/tty1 raw
stty -F /dev/tty2 raw
off
