#!/bin/sh
# rails -n N [-k rxe] [-r RATE] [-d DELAY] [-m MTU] [-s A|B]: creates N rails in a guest.
#
# Without -s this guest is both hosts A and B. Rail R is then the veth pair vA<R> (10.0.R.1) and vB<R> (10.0.R.2) in one network
# namespace. With -s this guest is that host, and rail R is the kernel's interface vec<R>. With -k each end gets an RDMA device
# <kind><host><R>: rxeA0, rxeB0, ... RATE and DELAY (tc's units: 200mbit, 1ms) apply to outgoing traffic of each end.
set -eu
kind='' n=0 rate='' delay='' mtu=4200 side=''
while getopts k:n:r:d:m:s: o; do
    case $o in
    k) kind=$OPTARG ;;
    n) n=$OPTARG ;;
    r) rate=$OPTARG ;;
    d) delay=$OPTARG ;;
    m) mtu=$OPTARG ;;
    s) side=$OPTARG ;;
    *) exit 2 ;;
    esac
done

number() { if [ "$1" = A ]; then echo 1; else echo 2; fi; }
other() { if [ "$1" = A ]; then echo B; else echo A; fi; }
hardware() { printf '02:00:00:%02x:00:0%d' "$1" "$(number "$2")"; } # rail host

# end RAIL HOST DEVICE: configures one end of a rail.
end() {
    ip link set "$3" mtu "$mtu" address "$(hardware "$1" "$2")"
    ip addr add "10.0.$1.$(number "$2")/24" dev "$3"
    ip link set "$3" up
    echo 0 >"/proc/sys/net/ipv4/conf/$3/rp_filter"
    o=$(other "$2")
    ip neigh replace "10.0.$1.$(number "$o")" lladdr "$(hardware "$1" "$o")" dev "$3" nud permanent
    if [ -n "$delay" ]; then
        tc qdisc add dev "$3" root netem delay "$delay" ${rate:+rate "$rate"} limit 10000
    elif [ -n "$rate" ]; then
        tc qdisc add dev "$3" root tbf rate "$rate" burst 256k latency 50ms
    fi
    if [ -n "$kind" ]; then rdma link add "$kind$2$1" type "$kind" netdev "$3"; fi
}

# ready DEVICE: waits until the port is active, and for the GID of the address, which appears a moment later.
ready() {
    port=/sys/class/infiniband/$1/ports/1
    for _ in $(seq 3000); do
        if grep -q ACTIVE "$port/state" && grep -q ':ffff:' "$port"/gids/1; then return; fi
        sleep 0.02
    done
    echo "rails: port of $1 is not active after 60 s, or has no GID: $(cat "$port/state")" >&2
    exit 1
}

# Both ends of a rail may be in this namespace: accept packets from a local address on another interface.
for i in all default; do
    echo 0 >/proc/sys/net/ipv4/conf/$i/rp_filter
    echo 1 >/proc/sys/net/ipv4/conf/$i/accept_local
done
for r in $(seq 0 $((n - 1))); do
    if [ -n "$side" ]; then
        end "$r" "$side" "vec$r"
    else
        ip link add "vA$r" type veth peer name "vB$r"
        end "$r" A "vA$r"
        end "$r" B "vB$r"
    fi
done
[ -n "$kind" ] || exit 0
for r in $(seq 0 $((n - 1))); do
    for h in ${side:-A B}; do ready "$kind$h$r"; done
done
