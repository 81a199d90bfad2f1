package engine

import (
	"runtime"
	"syscall"
	"testing"
	"time"

	"gorail/backend/provider/fake"
	"gorail/backend/transfer"
)

// cpuTime is the processor time of this process.
func cpuTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkSessions is what sessions cost: 64 initiators connect to one target at once, and one initiator makes its first
// transfer. Both ends are in this process.
func BenchmarkSessions(b *testing.B) {
	b.Run("64 peers", func(b *testing.B) {
		const peers = 64
		var cpu time.Duration
		var heap int64
		for b.Loop() {
			b.StopTimer()
			h := onFake(b, fake.TCPCaps())
			bob := h.agent("bob")
			var all []*agent
			for range peers {
				all = append(all, h.agent("ann"))
			}
			before, began := inUse(), cpuTime()
			b.StartTimer()
			for _, a := range all {
				_ = a.LoadConn("bob", bob.Conn())
			}
			for _, a := range all {
				a.connected("bob")
			}
			b.StopTimer()
			cpu += cpuTime() - began
			heap += inUse() - before
			for _, a := range append(all, bob) {
				_ = a.Close()
			}
			b.StartTimer()
		}
		b.ReportMetric(float64(cpu.Microseconds())/float64(b.N*peers), "us-cpu/session")
		b.ReportMetric(float64(heap)/float64(b.N*peers), "B-heap/session")
	})
	b.Run("first transfer", func(b *testing.B) {
		for b.Loop() {
			b.StopTimer()
			h := onFake(b, fake.TCPCaps())
			ann, bob := h.agent("ann"), h.agent("bob")
			mine, theirs := ann.memory(4096), bob.memory(4096)
			b.StartTimer()
			_ = ann.LoadConn("bob", bob.Conn())
			ann.whole(transfer.Write, mine, theirs.seenBy(ann)).run()
			b.StopTimer()
			_, _ = ann.Close(), bob.Close()
			b.StartTimer()
		}
	})
}

// inUse is the number of bytes that are in use after a collection.
func inUse() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
