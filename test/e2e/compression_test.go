package e2e

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/internal/pattern"
	"gorail/nixlapi"
	"gorail/test/cuda"
	"gorail/test/testenv"
	"gorail/test/worker"
)

// packedBytes moves a buffer of one seed over a slow wire, and returns what the wire has carried for each byte.
func packedBytes(t *testing.T, op nixlapi.Op, seed uint64, mem func(a *worker.Agent, size, seed uint64) *worker.Buf, setenv, ini, tgt []string) float64 {
	t.Helper()
	const size = 8 << 20
	ha, hb := rails(t, 400)
	p := &pairOf{env: testenv.Need(t), ini: ha.startWith(setenv, "alice", params(ini...)), tgt: hb.startWith(setenv, "bob", params(tgt...))}
	p.tgt.Polling(true)
	src, dst, from := p.ini, p.tgt, ha
	if op == nixlapi.Read {
		src, dst, from = p.tgt, p.ini, hb
	}
	a, b := mem(src, size, seed), mem(dst, size, seedD)
	p.ini.Learn(p.tgt)
	spec := worker.XferSpec{Op: op, Local: a.All(), Remote: b.All(), Peer: "bob", Notif: []byte("n")}
	if op == nixlapi.Read {
		spec.Local, spec.Remote = b.All(), a.All()
	}
	x := p.ini.Xfer(spec)
	var sent uint64
	const rounds = 3
	for range rounds {
		b.Fill(seedD)
		before := from.Sent("rail0")
		x.Do(limit)
		sent += from.Sent("rail0") - before
		require.Len(t, p.tgt.WaitNotifs(1, limit), 1)
		b.Want(seed)
	}
	require.NoError(t, x.Release())
	exit(t, p.ini, p.tgt)
	return float64(sent) / (rounds * size)
}

func hostMem(a *worker.Agent, size, seed uint64) *worker.Buf { return a.Buffer(size, seed) }

// TestCompression: with compression=on at both ends the wire carries fewer bytes of bfloat16, and no more of others. With one end alone, it
// carries all. Each byte arrives as it was.
func TestCompression(t *testing.T) {
	t.Parallel()
	ours(t)
	on, off := []string{"compression", "on"}, []string(nil)
	sealed := append([]string{"encryption", "on"}, on...)
	for _, c := range []struct {
		name     string
		seed     uint64
		ini, tgt []string
		most     float64
	}{
		{"numbers", pattern.Floats | 1, on, on, 0.78}, // 1/1.35 of them, and 4 % of headers
		{"numbers, encrypted", pattern.Floats | 2, sealed, sealed, 0.78},
		{"random", 3, on, on, 1.06},
		{"one end", pattern.Floats | 4, on, off, 1.06},
		{"the other end", pattern.Floats | 5, off, on, 1.06},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			eachOp(t, func(t *testing.T, op nixlapi.Op) {
				got := packedBytes(t, op, c.seed, hostMem, nil, c.ini, c.tgt)
				require.Less(t, got, c.most)
				if c.most > 1 {
					require.Greater(t, got, 1.0)
				}
			})
		})
	}
}

// TestCompressionVRAM: memory of GPUs that is staged through bounce buffers is packed, too.
func TestCompressionVRAM(t *testing.T) {
	t.Parallel()
	ours(t)
	setenv := []string{"GORAIL_CUDA_PATH=" + cuda.Build(t).Path}
	eachOp(t, func(t *testing.T, op nixlapi.Op) {
		on := []string{"compression", "on"}
		mem := func(a *worker.Agent, size, seed uint64) *worker.Buf { return a.GPUBuffer(size, seed, device(0)) }
		require.Less(t, packedBytes(t, op, pattern.Floats|1, mem, setenv, on, on), 0.78)
	})
}

// TestCompressionGPUs: with compression at both ends the GPUs pack what goes between them through host memory. Each byte arrives as it was, in one
// piece and in many; an end without the option, and a GPU that cannot, leave the bytes in clear, and the log says it.
func TestCompressionGPUs(t *testing.T) {
	t.Parallel()
	ours(t)
	for _, c := range []struct {
		name, here, there string
		fails             bool // the peer's driver cannot translate the kernels
		says              string
	}{{"both ends", "on", "on", false, "by the GPUs"}, {"one end", "on", "off", false, "the peer has compression=off"}, {"the other end", "off", "on", false, "compression is off"},
		{"no kernels there", "on", "on", true, "a GPU that does not compress"}, {"auto", "auto", "auto", false, "by the GPUs, while that is faster"}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			eachOp(t, func(t *testing.T, op nixlapi.Op) {
				o := stagedHost(t, "tcp")
				o.Setenv = append(o.Setenv, "GORAIL_STAGE_SIZE=8MiB")
				p := &pairOf{env: o.Env, ini: agent(process(t, o), o.Env, "alice", params("compression", c.here)), tgt: agent(process(t, o), o.Env, "bob", params("compression", c.there))}
				p.tgt.Polling(true)
				const size, ofA, ofB = 2 * cuda.Granule, seedA | pattern.Floats, seedB | pattern.Floats
				a, b := p.ini.GPUBuffer(size, ofA, device(0)), p.tgt.GPUBuffer(size, ofB, device(1))
				if c.fails {
					p.tgt.GPUFail("ModuleLoadDataEx", 1, cuda.NoJIT) // the kernel that copies was loaded for the registration
				}
				p.ini.Learn(p.tgt)
				move := func(local, remote worker.Side) {
					a.Fill(ofA)
					b.Fill(ofB)
					x := p.ini.Xfer(worker.XferSpec{Op: op, Local: local, Remote: remote, Peer: "bob", Notif: []byte("here")})
					x.Do(limit)
					require.Len(t, p.tgt.WaitNotifs(1, limit), 1)
					require.NoError(t, x.Release())
				}
				move(a.All(), b.All())
				if op == nixlapi.Write {
					b.Want(ofA)
				} else {
					a.Want(ofB)
				}
				packs := c.name == "both ends" // one piece in clear needs no kernel
				require.Equal(t, [2]bool{packs, packs}, [2]bool{p.ini.GPUCount("launches") > 0, p.tgt.GPUCount("launches") > 0})
				la, lb := scattered(7, 1000, 100, 1500, 1), scattered(9, 1000, 300, 1500, 2)
				move(a.At(la), b.At(lb))
				if op == nixlapi.Write {
					b.WantBlocks(ofB, lb, ofA, la)
					a.Want(ofA)
				} else {
					a.WantBlocks(ofA, la, ofB, lb)
					b.Want(ofB)
				}
				says(t, p.ini.Worker, "transfers go through bounce buffers", c.says)
				if c.fails {
					says(t, p.tgt.Worker, "compresses nothing")
				}
				p.endGPU(t, a, b)
			})
		})
	}
}

// TestCompressionAuto: compression=auto packs on a slow wire, once it has measured that.
func TestCompressionAuto(t *testing.T) {
	t.Parallel()
	ours(t)
	eachOp(t, func(t *testing.T, op nixlapi.Op) {
		auto := []string{"compression", "auto"}
		require.Less(t, packedBytes(t, op, pattern.Floats|1, hostMem, nil, auto, auto), 0.95)
	})
}

// BenchmarkCompression transfers bfloat16 over a wire, without compression and with it, 64 MiB of host memory; with GORAIL_TEST_CUDA 256 MiB
// between two GPUs, or within one (GORAIL_TEST_GPUS=1). GORAIL_TEST_MBIT has other rates of the wire than those of the default,
// GORAIL_TEST_WORDS other values of the option:
//
//	go test ./test/e2e -run NONE -bench Compression -benchtime 5x
//	GORAIL_TEST_CUDA=libcuda.so.1 GORAIL_TEST_MBIT=25000,100000 go test ./test/e2e -run NONE -bench Compression/VRAM -benchtime 5x
//
// With GORAIL_TEST_BACKEND=UCX it measures the wheel's UCX.
func BenchmarkCompression(b *testing.B) {
	mbits := []uint64{1000, 2500, 5000, 10_000}
	if list := os.Getenv("GORAIL_TEST_MBIT"); list != "" {
		mbits = nil
		for _, s := range strings.Split(list, ",") {
			n, err := strconv.ParseUint(s, 10, 64)
			require.NoError(b, err)
			mbits = append(mbits, n)
		}
	}
	memory := []string{"host"}
	if os.Getenv("GORAIL_TEST_CUDA") != "" {
		memory = append(memory, "VRAM")
	}
	for _, where := range memory {
		for _, mbit := range mbits {
			for _, op := range []nixlapi.Op{nixlapi.Write, nixlapi.Read} {
				b.Run(fmt.Sprintf("%s/%d/%s", where, mbit, op), func(b *testing.B) { compressionRates(b, where == "VRAM", mbit, op) })
			}
		}
	}
}

func compressionRates(b *testing.B, vram bool, mbit uint64, op nixlapi.Op) {
	rate, wire := map[string]float64{}, map[string]float64{} // and bytes on the wire for each byte
	words := []string{"off", "on", "auto"}
	if list := os.Getenv("GORAIL_TEST_WORDS"); list != "" {
		words = strings.Split(list, ",")
	}
	if testenv.Need(b).Backend == "UCX" {
		words = []string{"UCX"}
	}
	size := uint64(64 << 20)
	if vram {
		size *= 4
	}
	for _, word := range words {
		ha, hb := rails(b, mbit)
		p := compressing(b, ha, hb, word)
		mine, theirs := buffer(p.ini, size, pattern.Floats|1, vramOn(vram, 0)), buffer(p.tgt, size, pattern.Floats|2, vramOn(vram, 1))
		p.ini.Learn(p.tgt)
		x := p.ini.Xfer(worker.XferSpec{Op: op, Local: mine.All(), Remote: theirs.All(), Peer: "bob"})
		for began := time.Now(); time.Since(began) < 3*time.Second; { // auto measures; the shaper's bucket empties
			x.Do(limit)
		}
		from := ha
		if op == nixlapi.Read {
			from = hb
		}
		began, sent := time.Now(), from.Sent("rail0")
		for range b.N {
			x.Do(limit)
		}
		wire[word] = float64(from.Sent("rail0")-sent) / float64(b.N) / float64(size)
		rate[word] = float64(b.N) * float64(size) / time.Since(began).Seconds() / 1e6
		exit(b, p.ini, p.tgt)
	}
	for _, word := range words {
		b.ReportMetric(rate[word], "MB/s-"+word)
		b.ReportMetric(wire[word], "wire-"+word)
	}
	if rate["off"] > 0 {
		b.ReportMetric(rate["on"]/rate["off"], "x-on")
		b.ReportMetric(rate["auto"]/rate["off"], "x-auto")
	}
	b.ReportMetric(0, "ns/op")
}

// vramOn is memory of GPU n, or host memory.
func vramOn(vram bool, n int) *worker.GPUMem {
	if !vram {
		return nil
	}
	if os.Getenv("GORAIL_TEST_GPUS") == "1" {
		n = 0
	}
	return gpuMem(n)
}

func compressing(b *testing.B, ha, hb *host, word string) *pairOf {
	tls := "tcp"
	if path := os.Getenv("GORAIL_TEST_CUDA"); path != "" { // where there are GPUs, UCX wants cuda_copy for host memory, too
		b.Setenv("GORAIL_CUDA_PATH", path)
		tls = "tcp,cuda_copy"
	}
	if word == "UCX" {
		b.Setenv("UCX_TLS", tls)
		b.Setenv("UCX_NET_DEVICES", "rail0")
		return onRails(b, ha, hb)
	}
	return onRails(b, ha, hb, "compression", word)
}
