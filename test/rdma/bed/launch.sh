# Starts a guest, on the host. This shell is the first process of new pid, mount, net and ipc namespaces. The guest's folder (memory
# file, sockets, status) is on a tmpfs of this mount namespace. When this shell ends, for any reason, all processes here end and the
# tmpfs is gone.
#
# BED_*: KERNEL, MB, CPU, APPEND (more kernel parameters), and the text of INIT, RAILS and CMD. The exit status of CMD goes
# to descriptor 3, the kernel's console to 4. Rails are the descriptors from 5 on.
set -eu
mount --make-rprivate /
mount -t tmpfs -o mode=700,size="$((BED_MB + 64))m" bed /dev/shm
w=/dev/shm/bed
mkdir $w
printf '%s\n' "$BED_INIT" >$w/init
printf '%s\n' "$BED_RAILS" >$w/rails
printf '%s\n' "$BED_CMD" >$w/cmd
cat /proc/cpuinfo >$w/cpuinfo
chmod +x $w/init $w/rails $w/cmd
kernel=$BED_KERNEL mb=$BED_MB cpu=$BED_CPU append=$BED_APPEND
unset BED_KERNEL BED_MB BED_CPU BED_APPEND BED_INIT BED_RAILS BED_CMD

# UML ptraces its helper processes and must not be the init of a pid namespace. Therefore this shell is the init.
# shellcheck disable=SC2086
TMPDIR=/dev/shm taskset -c "$cpu" "$kernel" mem="${mb}M" root=/dev/root rootfstype=hostfs rootflags=/ ro init=$w/init \
    umid=guest uml_dir=$w/ quiet loglevel=4 panic=-1 con=null con0=null,fd:4 con1=null,fd:1 con2=null,fd:2 $append \
    </dev/null 3>&- || :
if [ -s $w/status ]; then cat $w/status >&3; fi
