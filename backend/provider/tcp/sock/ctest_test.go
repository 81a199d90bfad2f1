package sock_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/backend/provider/tcp/sock"
	"gorail/backend/trust"
	"gorail/test/native"
	"gorail/test/tcpmodel"
)

func ctest(t *testing.T, sanitizer ...string) string {
	return native.Part{Name: "ctest", Program: true, Flags: append(sanitizer, "-D_GNU_SOURCE"), Include: []string{"backend/include"},
		Dirs: []string{"backend/provider/internal/clib", "backend/provider/tcp/sock", "backend/provider/tcp/sock/ctest"}}.Build(t)
}

// Address alone: with undefined, too, the compiler takes twice the processor time. TestSanitized has both.
var addressFlags = []string{"-fsanitize=address"}

func run(t *testing.T, bin string, in []byte, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, bin, args...)
	c.Stdin = bytes.NewReader(in)
	out, err := c.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return string(out)
}

// TestSanitized feeds conversations by seed to the C code with the sanitizers of addresses, which also looks for leaks, and of undefined
// behaviour.
func TestSanitized(t *testing.T) {
	t.Parallel()
	bin := ctest(t, "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
	n := uint64(20000)
	if testing.Short() {
		n = 1000
	}
	var in []byte
	for seed := range n {
		rnd := rand.New(rand.NewPCG(seed, 5))
		receives, cut, text := byte(rnd.IntN(4)), []uint16{1, 7, 100, 4000}[rnd.IntN(4)], sample(rnd)
		if seed%4 > 1 {
			receives, text = receives|packed, packedSample(rnd)
		}
		if seed%2 == 1 {
			receives, text = receives|sealed, seal(rnd, text)
		}
		in = binary.LittleEndian.AppendUint16(append(in, receives), cut)
		in = append(binary.LittleEndian.AppendUint32(in, uint32(len(text))), text...)
	}
	require.Equal(t, fmt.Sprintln(n), run(t, bin, in, "feed", hex.EncodeToString(recordSecret.Bytes()[:])))
}

const (
	sealed = 0x80 // the conversation is in records
	packed = 0x40 // bodies may be packed
)

// seal makes records of a conversation, most of them right.
func seal(rnd *rand.Rand, text []byte) (out []byte) {
	r := records()
	for len(text) > 0 {
		n := min(len(text), 1+rnd.IntN([]int{10, 200, 3000}[rnd.IntN(3)]))
		one := r.Seal(text[:n], rnd.IntN(6) == 0)
		if rnd.IntN(20) == 0 {
			one[rnd.IntN(len(one))] ^= 1 << rnd.IntN(8)
		}
		out, text = append(out, one...), text[n:]
	}
	return out
}

// TestRecordKeys compares the keys of records that C derives with those of package trust.
func TestRecordKeys(t *testing.T) {
	t.Parallel()
	lines := strings.Fields(run(t, ctest(t, addressFlags...), nil, "keys", hex.EncodeToString(recordSecret.Bytes()[:])))
	require.Len(t, lines, 8)
	for i, line := range lines {
		k := recordSecret.Key(trust.Direction(i%2), uint32(i/2)*0x1234567)
		require.Equal(t, hex.EncodeToString(append(k.Key[:], k.IV[:]...)), line)
	}
}

// TestFailingLibcrypto lets each call of libcrypto fail once: the connection ends. Before, a key whose derivation failed was what lay
// on the stack.
func TestFailingLibcrypto(t *testing.T) {
	t.Parallel()
	require.Contains(t, run(t, ctest(t, addressFlags...), nil, "failing"), "calls")
}

// TestExit ends a process while threads make connections, in which the application used libcrypto first. A new key would crash then.
func TestExit(t *testing.T) {
	t.Parallel()
	require.Equal(t, "ended\n", run(t, ctest(t, addressFlags...), nil, "exit"))
}

// TestThreads uses one rail from several threads, with the thread sanitizer, and in the short form with that of addresses.
func TestThreads(t *testing.T) {
	t.Parallel()
	flags := addressFlags
	if !testing.Short() {
		flags = []string{"-fsanitize=thread"}
	}
	run(t, ctest(t, flags...), nil, "threads")
}

// TestGPUs moves memory of GPUs over a driver whose copies are late and sometimes fail: ctest/gpus.c.
func TestGPUs(t *testing.T) {
	t.Parallel()
	lives := 2000
	if testing.Short() {
		lives = 100
	}
	run(t, ctest(t, addressFlags...), nil, "gpus", fmt.Sprint(lives))
}

// TestRetired deregisters memory of GPUs while a GPU copies: ctest/retired.c.
func TestRetired(t *testing.T) {
	t.Parallel()
	run(t, ctest(t, addressFlags...), nil, "retired")
}

// TestStuckGPUs has copies that do not end for a while: ctest/stuck.c.
func TestStuckGPUs(t *testing.T) {
	t.Parallel()
	bin := ctest(t, addressFlags...)
	for _, what := range []string{"messages", "closed", "connecting", "large", "middle", "small", "slow"} {
		t.Run(what, func(t *testing.T) { t.Parallel(); run(t, bin, nil, "stuck", what) })
		t.Run(what+", packed", func(t *testing.T) { t.Parallel(); run(t, bin, nil, "stuck", what, "packed") })
	}
}

// TestPackSanitized: the codec with the sanitizers, as this machine runs it and as others do, writes the same blocks.
func TestPackSanitized(t *testing.T) {
	t.Parallel()
	blocks := 100_000
	if testing.Short() {
		blocks = 2000
	}
	bin := ctest(t, "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
	dir := "backend/provider/tcp/sock/"
	other := native.Part{Name: "packs", Program: true, Flags: []string{"-DGR_PACK_OTHER", "-DPACKS_MAIN"},
		Sources: []string{dir + "pack.c", dir + "pack_rows.c", dir + "ctest/pack.c"}}.Build(t)
	sum := run(t, bin, nil, "pack", fmt.Sprint(blocks))
	require.Len(t, sum, 17)
	require.Equal(t, sum, run(t, other, nil, "pack", fmt.Sprint(blocks)), "the compiler's vectors, and those of this machine")
}

// TestPace: compression=auto finds the faster way, however deep READs are under way, and is not stuck in the slower one: ctest/pace.c.
func TestPace(t *testing.T) {
	t.Parallel()
	dir := "backend/provider/tcp/sock/"
	bin := native.Part{Name: "pace", Program: true, Flags: []string{"-D_GNU_SOURCE", "-DPACE_MAIN"}, Include: []string{"backend/include"},
		Sources: []string{dir + "pace.c", dir + "ctest/pace.c"}}.Build(t)
	for _, c := range []struct {
		what        string
		least, most int // 1024ths that are packed
	}{{"faster", 950, 1024}, {"slower", 0, 30}, {"begins", 0, 40}, {"changes", 500, 1024}, {"stopped", 800, 1024}, {"bursts", 900, 1024}, {"mixed", 900, 1024}, {"noise", 0, 60}, {"queue", 950, 1024}} {
		packed, err := strconv.Atoi(strings.TrimSpace(run(t, bin, nil, c.what)))
		require.NoError(t, err)
		require.GreaterOrEqual(t, packed, c.least, c.what)
		require.LessOrEqual(t, packed, c.most, c.what)
	}
}

// TestFlip: another rail's thread decides in the middle of a plan, which goes on as it began: ctest/flip.c.
func TestFlip(t *testing.T) {
	t.Parallel()
	const dir = "backend/provider/tcp/sock/"
	sources := []string{dir + "ctest/flip.c", "backend/provider/internal/clib/guard.c"}
	files, err := filepath.Glob("*.c")
	require.NoError(t, err)
	for _, name := range files {
		if name != "pace.c" { // the test has its own
			sources = append(sources, dir+name)
		}
	}
	run(t, native.Part{Name: "flip", Program: true, Flags: append([]string{"-D_GNU_SOURCE", "-DFLIP_MAIN"}, addressFlags...), Include: []string{"backend/include"}, Sources: sources}.Build(t), nil)
}

// TestVectors compares the encodings of C and of package tcpmodel.
func TestVectors(t *testing.T) {
	t.Parallel()
	lines := strings.Fields(run(t, ctest(t, addressFlags...), nil, "vectors"))
	require.Len(t, lines, 14)
	for k := range 7 {
		i := uint64(k + 1)
		h := tcpmodel.Header{Op: tcpmodel.Op(i), Flags: uint8(i * 3), Segments: uint16(i * 1111), Len: uint32(i * 100000007), ID: uint32(i * 200000011),
			Status: uint32(i * 300000007), Seq: i * 1000000000000003, Ack: i * 2000000000000011}
		s := tcpmodel.Segment{Key: i * 1234567890123, Addr: binary.LittleEndian.Uint64([]byte("regions\x00")) * i, Len: uint32(i * 400000003)}
		require.Equal(t, hex.EncodeToString(s.Append(h.Append(nil))), lines[2*k])
		require.Equal(t, fmt.Sprintf("%016x", sock.SessionKey(sock.Salt{1, 2, 3}, i, uint32(i))), lines[2*k+1])
		text, err := hex.DecodeString(lines[2*k])
		require.NoError(t, err)
		got, ok := tcpmodel.DecodeHeader(text)
		require.True(t, ok)
		require.Equal(t, h, got)
		require.Equal(t, s, tcpmodel.DecodeSegment(text[tcpmodel.HeaderLen:]))
	}
}
