package engine

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"gorail/backend/provider/fake"
	"gorail/backend/provider/fake/drive"
	"gorail/backend/transfer"
	"gorail/backend/wire"
)

// BenchmarkKeys loads the metadata of up to 100,000 regions with keys on up to 32 rails. Then it writes to the last region at
// once. Use -benchtime 1x.
func BenchmarkKeys(b *testing.B) {
	provKeys := fake.TCPCaps()
	provKeys.ProviderKeys, provKeys.VirtAddr = true, true
	for _, regions := range []int{1, 100, 10_000} {
		b.Run(fmt.Sprint("regions=", regions), func(b *testing.B) { benchKeys(b, regions, 1, fake.TCPCaps(), false) })
	}
	for _, rails := range []int{1, 8, 32} {
		b.Run(fmt.Sprint("rails=", rails), func(b *testing.B) { benchKeys(b, 100_000, rails, fake.TCPCaps(), false) })
	}
	b.Run("rails=32/shuffled", func(b *testing.B) { benchKeys(b, 100_000, 32, fake.TCPCaps(), true) })
	b.Run("rails=8/provider-keys", func(b *testing.B) { benchKeys(b, 100_000, 8, provKeys, false) })
}

func benchKeys(b *testing.B, regions, rails int, caps fake.Caps, shuffled bool) {
	const size, stride = 4096, 8192
	h := onRails(b, rails, caps)
	p := &pair{a: h.agent("ann", "max_rails", "32"), b: h.agent("bob", "max_rails", "32")}
	mem := drive.Alloc(regions * stride)
	blobs := make([][]byte, regions)
	var empty, full runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&empty)
	start := time.Now()
	for i := range regions {
		id, err := p.b.Register(drive.Addr(mem)+uint64(i)*stride, size, 0, 0, nil)
		require.NoError(b, err)
		blobs[i], err = p.b.RegionBlob(id)
		require.NoError(b, err)
	}
	register := time.Since(start)
	runtime.GC()
	runtime.ReadMemStats(&full)
	if shuffled {
		rand.Shuffle(regions, func(i, k int) { blobs[i], blobs[k] = blobs[k], blobs[i] })
	}
	p.mine = p.a.memory(size)
	for b.Loop() {
		loadBoth(p.a, p.b)
		p.allUp(rails)
		runtime.GC()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		sent, asked := p.b.node.Stats().BytesSent, p.a.node.Stats().BytesSent
		start := time.Now()
		var last Desc
		for _, blob := range blobs {
			r, err := wire.DecodeRegion(blob)
			require.NoError(b, err)
			id, err := p.a.LoadRemote("bob", r.Addr, r.Len, 0, 0, blob)
			require.NoError(b, err)
			last = Desc{Addr: r.Addr, Len: size, MD: unsafe.Pointer(&metaObject{region: id})}
		}
		loaded := time.Now()
		p.a.prep(transfer.Write, []Desc{p.mine.desc(0, size)}, []Desc{last}, "bob").run("")
		first := time.Now()
		r := p.a.connected("bob")
		until(b, "all keys are here", func() bool { return r.keysHere() == regions })
		keyed := time.Now()
		runtime.GC()
		runtime.ReadMemStats(&after)
		b.ReportMetric(loaded.Sub(start).Seconds()*1e3, "ms-load")
		b.ReportMetric(first.Sub(loaded).Seconds()*1e3, "ms-first-transfer")
		b.ReportMetric(keyed.Sub(start).Seconds()*1e3, "ms-all-keys")
		b.ReportMetric(float64(p.b.node.Stats().BytesSent-sent)/float64(regions), "B-keys/region")
		b.ReportMetric(float64(p.a.node.Stats().BytesSent-asked)/float64(regions), "B-asked/region")
		b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/float64(regions), "B-heap/region")
		b.ReportMetric(register.Seconds()*1e3, "ms-register")
		b.ReportMetric(float64(full.HeapAlloc-empty.HeapAlloc)/float64(regions), "B-heap-target/region")
		require.NoError(b, p.a.Disconnect("bob"))
	}
}
