package engine

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"gorail/backend/transfer"
	"gorail/backend/wire"
	"gorail/test/drive"
	"gorail/test/fake"
)

// BenchmarkRequests is the time of a work request, from the post of a transfer to its end. The transfer has 10,000 descriptors
// that don't touch. The imitated libibverbs executes work requests in the call that posts them. So the time is that of core,
// provider and this library. Preparation is measured apart. A descriptor has 128 bytes, so that copies take little of the time.
// docs/performance.md draws the conclusions.
func BenchmarkRequests(b *testing.B) {
	for _, op := range []int{transfer.Write, transfer.Read} {
		b.Run(fmt.Sprint("op=", op), func(b *testing.B) {
			const n, length = 10_000, 128
			h := onVerbs(b, 1)
			p := h.pair(2 * n * length)
			p.a.whole(transfer.Write, p.mine, p.theirs).run()
			local, remote := p.every(n, length)
			var prep, move time.Duration
			best := time.Duration(1 << 62)
			h.lib.Zero()
			for b.Loop() {
				start := time.Now()
				x := p.a.prep(op, local, remote, "bob")
				prepped := time.Now()
				x.run()
				took := time.Since(prepped)
				prep, move, best = prep+prepped.Sub(start), move+took, min(best, took)
				x.release()
			}
			per := float64(b.N) * n
			b.ReportMetric(float64(prep.Nanoseconds())/per, "ns-prep/req")
			b.ReportMetric(float64(move.Nanoseconds())/per, "ns-move/req")
			b.ReportMetric(float64(best.Nanoseconds())/n, "ns-move-best/req")
			b.ReportMetric(float64(h.lib.Count("chains"))/per, "doorbells/req")
			b.ReportMetric(float64(h.lib.Count("cqes"))/per, "completions/req")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// BenchmarkRuns is the time of a transfer per descriptor, without a network: its preparation, and from its post to its end. The
// rails take batches of it and copy them. The descriptors have 64 bytes and don't touch.
func BenchmarkRuns(b *testing.B) {
	for _, rails := range []int{1, 8} {
		for _, n := range []int{1000, 10_000, 100_000, 1_000_000} {
			b.Run(fmt.Sprintf("rails=%d/n=%d", rails, n), func(b *testing.B) { benchRuns(b, rails, n) })
		}
	}
}

func benchRuns(b *testing.B, rails, n int) {
	const length, stride = 64, 128
	h := onRails(b, rails, fake.TCPCaps())
	p := h.pair(n * stride)
	p.allUp(rails)
	local, remote := make([]Desc, n), make([]Desc, n)
	for i := range n {
		local[i], remote[i] = p.mine.desc(i*stride, length), p.theirs.desc(i*stride, length)
	}
	var prep, move time.Duration
	for b.Loop() {
		start := time.Now()
		x := p.a.prep(transfer.Write, local, remote, "bob")
		prepped := time.Now()
		x.run()
		prep, move = prep+prepped.Sub(start), move+time.Since(prepped)
		x.release()
	}
	per := float64(b.N) * float64(n)
	b.ReportMetric(float64(prep.Nanoseconds())/per, "ns-prep/desc")
	b.ReportMetric(float64(move.Nanoseconds())/per, "ns-move/desc")
}

// prepLists are the shapes of descriptor lists that preparation is measured with: the block of descriptor i at both sides, which
// have room for twice as many blocks. Runs of that many descriptors are in one region, and the regions take turns.
var prepLists = []struct {
	name    string
	regions int
	run     int
	params  []string
	block   func(i int, random []int) int
}{
	{"strided", 1, 1, nil, func(i int, _ []int) int { return 2 * i }},
	{"touching", 1, 1, nil, func(i int, _ []int) int { return i }},
	{"twos", 1, 1, nil, func(i int, _ []int) int { return i/2*3 + i%2 }},
	{"random", 1, 1, nil, func(i int, random []int) int { return 2 * random[i] }},
	{"layers", 80, 1, nil, func(i int, _ []int) int { return 2 * i }},
	{"runs", 80, 128, nil, func(i int, _ []int) int { return 2 * i }},
	{"spread", 1, 1, []string{"mr_max", "1MiB"}, func(i int, random []int) int { return 2 * random[i] }},
	{"slices", 1, 1, []string{"mr_max", "1MiB"}, func(i int, _ []int) int { return 2 * i }},
}

// BenchmarkPrep is the time to prepare and release a transfer, per descriptor: the median, and the best.
func BenchmarkPrep(b *testing.B) {
	const length = 64
	for _, list := range prepLists {
		for _, n := range []int{1, 1000, 10_000, 80_000, 1_000_000} {
			b.Run(fmt.Sprintf("%s/n=%d", list.name, n), func(b *testing.B) {
				each := (n + list.regions*list.run - 1) / (list.regions * list.run) * list.run
				p := onFake(b, fake.TCPCaps()).pair(each*2*length, list.params...)
				mine, theirs := []*memory{p.mine}, []*memory{p.theirs}
				for range list.regions - 1 {
					mine, theirs = append(mine, p.a.memory(each*2*length)), append(theirs, p.b.memory(each*2*length).seenBy(p.a))
				}
				local, remote := make([]Desc, n), make([]Desc, n)
				random := rand.New(rand.NewPCG(1, 2)).Perm(each)
				for i := range n {
					at, g := list.block(i/(list.regions*list.run)*list.run+i%list.run, random)*length, i/list.run%list.regions
					local[i], remote[i] = mine[g].desc(at, length), theirs[g].desc(at, length)
				}
				p.a.timePrep(b, local, remote)
			})
		}
	}
}

// timePrep reports the time to prepare and release a transfer.
func (a *agent) timePrep(b *testing.B, local, remote []Desc) {
	b.ReportAllocs()
	var took []time.Duration
	for b.Loop() {
		start := time.Now()
		a.prep(transfer.Write, local, remote, "bob").release()
		took = append(took, time.Since(start))
	}
	slices.Sort(took)
	n := float64(len(local))
	b.ReportMetric(float64(took[len(took)/2].Nanoseconds())/n, "ns/desc")
	b.ReportMetric(float64(took[0].Nanoseconds())/n, "best-ns/desc")
	b.ReportMetric(0, "ns/op")
}

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
