package e2e

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"gorail/test/testenv"
	"gorail/test/worker"
)

// crowd makes pairs of interfaces on a host, with an address at one end of each.
func (h *host) crowd(pairs int) {
	h.t.Helper()
	for i := range pairs {
		name := fmt.Sprintf("c%d", i)
		require.NoError(h.t, h.nl.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: name + "p"}))
		ip := &net.IPNet{IP: net.IPv4(10, byte(80+i/250), byte(i%250), 1), Mask: net.CIDRMask(24, 32)}
		require.NoError(h.t, h.nl.AddrAdd(h.link(name), &netlink.Addr{IPNet: ip}))
		require.NoError(h.t, h.nl.LinkSetUp(h.link(name)))
	}
}

// cpu is the processor time of a process.
func cpu(t testing.TB, pid int) time.Duration {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	require.NoError(t, err)
	_, after, _ := strings.Cut(string(text), ") ")
	f := strings.Fields(after)
	user, err := strconv.Atoi(f[11])
	require.NoError(t, err)
	system, err := strconv.Atoi(f[12])
	require.NoError(t, err)
	return time.Duration(user+system) * 10 * time.Millisecond
}

// BenchmarkManyInterfaces: agents begin on hosts with many interfaces, and stay idle while others come and go.
func BenchmarkManyInterfaces(b *testing.B) {
	env := testenv.Need(b)
	begin := func(b *testing.B, h *host, agents int) time.Duration {
		var procs []*worker.Worker
		for range agents {
			procs = append(procs, h.worker(worker.Options{Env: env}))
		}
		began := time.Now()
		var all sync.WaitGroup
		for i, w := range procs {
			all.Go(func() { agent(w, env, fmt.Sprint("agent", i)) })
		}
		all.Wait()
		return time.Since(began)
	}
	for _, c := range []struct{ interfaces, agents int }{{2, 1}, {1000, 1}, {2, 8}, {220, 8}} {
		b.Run(fmt.Sprintf("%d_interfaces/%d_agents", c.interfaces, c.agents), func(b *testing.B) {
			h := newHost(b)
			h.crowd(c.interfaces / 2)
			for range b.N {
				b.ReportMetric(float64(begin(b, h, c.agents).Milliseconds()), "ms")
			}
		})
	}
	b.Run("churn", func(b *testing.B) {
		h := newHost(b)
		h.crowd(500)
		h.wire(newHost(b), "fast0", &net.IPNet{IP: net.IPv4(10, 77, 0, 1), Mask: net.CIDRMask(24, 32)}, &net.IPNet{IP: net.IPv4(10, 77, 0, 2), Mask: net.CIDRMask(24, 32)})
		w := h.worker(worker.Options{Env: env})
		agent(w, env, "idle", params("devices", "fast0"))
		for range b.N {
			const quiet, changes = 10 * time.Second, 100
			time.Sleep(2 * time.Second)
			before := cpu(b, w.Pid())
			time.Sleep(quiet)
			idle := cpu(b, w.Pid()) - before
			began := time.Now()
			before = cpu(b, w.Pid())
			for i := range changes {
				name := fmt.Sprintf("n%d", i)
				require.NoError(b, h.nl.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: name + "p"}))
				require.NoError(b, h.nl.AddrAdd(h.link(name), &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(10, 99, byte(i), 1), Mask: net.CIDRMask(24, 32)}}))
				require.NoError(b, h.nl.LinkSetUp(h.link(name)))
				require.NoError(b, h.nl.LinkDel(h.link(name)))
				time.Sleep(time.Until(began.Add(time.Duration(i+1) * 100 * time.Millisecond)))
			}
			b.ReportMetric(100*float64(idle)/float64(quiet), "%idle")
			b.ReportMetric(100*float64(cpu(b, w.Pid())-before)/float64(time.Since(began)), "%churn")
		}
	})
}
