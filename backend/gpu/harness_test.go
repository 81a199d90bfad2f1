package gpu_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand"
	"net"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/backend/gpu"
	"gorail/test/cuda"
)

// rig holds a driver, an application, and their common library. With a real driver, there is no library to control.
type rig struct {
	*testing.T
	path string
	lib  *cuda.Lib // nil: a real driver
	app  *cuda.App
	drv  *gpu.Driver
}

func open(t *testing.T) *rig {
	lib := cuda.Build(t)
	return openAt(t, lib, lib.Path)
}

func openAt(t *testing.T, lib *cuda.Lib, path string) *rig {
	r := &rig{T: t, path: path, lib: lib}
	d, err := gpu.Open(path)
	require.NoError(t, err)
	r.drv = d
	r.app = cuda.NewApp(t, path)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	return r
}

// openReal opens the driver that GORAIL_TEST_CUDA names: make test-gpu.
func openReal(t *testing.T) *rig {
	path := os.Getenv("GORAIL_TEST_CUDA")
	if path == "" {
		t.Skip("wants a GPU: make test-gpu")
	}
	return openAt(t, nil, path)
}

// second returns a GPU other than 0, if there is one.
func (r *rig) second() int { return min(1, r.drv.Devices()-1) }

// alloc allocates memory until the end of the test.
func (r *rig) alloc(device int, kind cuda.Kind, size uint64) uint64 {
	at := r.app.Alloc(device, kind, size)
	r.Cleanup(func() { r.app.Free(device, kind, at) })
	return at
}

func (r *rig) vmm(device, n int, size uint64, shareable bool) uint64 {
	at := r.app.VMM(device, n, size, shareable)
	r.Cleanup(func() { r.app.FreeVMM(device, n, size, at) })
	return at
}

func (r *rig) what(at, size uint64) gpu.Mem {
	r.Helper()
	m, err := r.drv.What(at, size)
	require.NoError(r, err)
	return m
}

func (r *rig) stream(device, peer int) *gpu.Stream {
	l, err := r.drv.Stream(device, peer)
	require.NoError(r, err)
	r.Cleanup(l.Close)
	return l
}

func (r *rig) job(l *gpu.Stream) *gpu.Job {
	j, err := l.Job()
	require.NoError(r, err)
	r.Cleanup(func() { require.NoError(r, j.Free()) })
	return j
}

// finish polls until the job has ended.
func finish(t testing.TB, j *gpu.Job) error {
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); {
		if ended, err := j.Poll(); ended {
			return err
		}
	}
	t.Fatal("the job did not end within 30 s")
	return nil
}

func (r *rig) run(j *gpu.Job, w gpu.Work) {
	r.Helper()
	require.NoError(r, j.Post(w))
	require.NoError(r, finish(r, j))
}

// noise returns the same bytes for the same arguments, which the caller may change.
func noise(seed int64, n uint64) []byte {
	type made struct {
		seed int64
		n    uint64
	}
	b, ok := noises.Load(made{seed, n})
	if !ok {
		b = make([]byte, n)
		rand.New(rand.NewSource(seed)).Read(b.([]byte))
		noises.Store(made{seed, n}, b)
	}
	return slices.Clone(b.([]byte))
}

var noises sync.Map

// descriptors counts the open file descriptors of this process.
func descriptors(t *testing.T) int {
	list, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(list)
}

// ---- another process ----

type ask struct {
	Do, Kind string
	Device   int
	N        int // handles, or pieces
	First    int
	Size, At uint64
	Data     []byte
}

type answer struct {
	Err   string
	At    uint64
	Share []byte
	Sizes []uint64
	Data  []byte
}

// peer is another process with its own memory.
type peer struct {
	t   *testing.T
	cmd *exec.Cmd
	in  *json.Encoder
	out *json.Decoder
	fds *net.UnixConn
}

// startPeer runs this test binary again, with the same library.
func startPeer(t *testing.T, path string) *peer {
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	theirs, ours := os.NewFile(uintptr(pair[1]), "theirs"), os.NewFile(uintptr(pair[0]), "ours")
	conn, err := net.FileConn(ours)
	require.NoError(t, err)
	ours.Close()
	cmd := exec.Command(os.Args[0], "-test.run=^TestPeerProcess$", "-test.v=false")
	cmd.Env = append(os.Environ(), "GORAIL_TEST_GPU_PEER="+path)
	cmd.ExtraFiles = []*os.File{theirs}
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	theirs.Close()
	p := &peer{t: t, cmd: cmd, in: json.NewEncoder(in), out: json.NewDecoder(bufio.NewReader(out)), fds: conn.(*net.UnixConn)}
	t.Cleanup(func() {
		in.Close()
		_ = cmd.Wait()
		conn.Close()
	})
	return p
}

func (p *peer) ask(a ask) answer {
	p.t.Helper()
	require.NoError(p.t, p.in.Encode(a))
	var got answer
	require.NoError(p.t, p.out.Decode(&got))
	require.Empty(p.t, got.Err)
	return got
}

func (p *peer) kill() {
	require.NoError(p.t, p.cmd.Process.Kill())
	_ = p.cmd.Wait()
}

// take receives file descriptors of pieces.
func (p *peer) take(n int) []int32 {
	p.t.Helper()
	b, oob := make([]byte, 1), make([]byte, syscall.CmsgSpace(4*n))
	_, k, _, _, err := p.fds.ReadMsgUnix(b, oob)
	require.NoError(p.t, err)
	msgs, err := syscall.ParseSocketControlMessage(oob[:k])
	require.NoError(p.t, err)
	fds, err := syscall.ParseUnixRights(&msgs[0])
	require.NoError(p.t, err)
	require.Len(p.t, fds, n)
	out := make([]int32, n)
	for i, fd := range fds {
		out[i] = int32(fd)
	}
	return out
}

// TestPeerProcess is not a test: startPeer runs it in another process.
func TestPeerProcess(t *testing.T) {
	path := os.Getenv("GORAIL_TEST_GPU_PEER")
	if path == "" {
		t.Skip("the other process of other tests")
	}
	d, err := gpu.Open(path)
	require.NoError(t, err)
	app := cuda.NewApp(t, path)
	if os.Getenv("GORAIL_TEST_GPU_FABRIC") != "" {
		cuda.At(t, path).Set("fabric", 1)
	}
	file := os.NewFile(3, "fds")
	conn, err := net.FileConn(file)
	require.NoError(t, err)
	in, out := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		var a ask
		if in.Decode(&a) != nil {
			os.Exit(0) // prevents output of the test framework on stdout
		}
		got := serve(d, app, conn.(*net.UnixConn), a)
		if err := out.Encode(got); err != nil {
			os.Exit(1)
		}
	}
}

func serve(d *gpu.Driver, app *cuda.App, conn *net.UnixConn, a ask) (got answer) {
	fail := func(err error) answer { return answer{Err: err.Error()} }
	switch a.Do {
	case "alloc":
		if a.Kind == "fabric" {
			got.At = app.FabricVMM(a.Device, a.N, a.Size)
		} else if a.Kind == "vmm" {
			got.At = app.VMM(a.Device, a.N, a.Size, true)
		} else if a.Kind == "shared" {
			var err error
			if got.At, err = d.SharedVRAM(a.Device, a.Size); err != nil {
				return fail(err)
			}
		} else {
			got.At = app.Alloc(a.Device, cuda.Device, a.Size)
		}
		m, err := d.What(got.At, uint64(max(a.N, 1))*a.Size)
		if err != nil {
			return fail(err)
		}
		s, err := d.Share(m)
		if err != nil {
			return fail(err)
		}
		got.Share = s[:]
	case "pieces":
		m, err := d.What(a.At, a.Size)
		if err != nil {
			return fail(err)
		}
		fds, sizes, err := d.Pieces(m, a.First, a.N)
		if err != nil {
			return fail(err)
		}
		ints := make([]int, len(fds))
		for i, fd := range fds {
			if ints[i] = int(fd); !closedOnExec(int(fd)) {
				return fail(errors.New("a program that this process executes gets the descriptor"))
			}
		}
		if _, _, err := conn.WriteMsgUnix([]byte{0}, syscall.UnixRights(ints...), nil); err != nil {
			return fail(err)
		}
		for _, fd := range ints {
			syscall.Close(fd)
		}
		got.Sizes = sizes
	case "prove":
		m, err := d.What(a.At, a.Size)
		if err != nil {
			return fail(err)
		}
		p, err := d.Prove(m)
		if err != nil {
			return fail(err)
		}
		got.Data = p[:]
	case "write":
		app.Write(a.Device, a.At, a.Data)
	case "read":
		got.Data = app.Read(a.Device, a.At, a.Size)
	case "free":
		app.Free(a.Device, cuda.Device, a.At)
	default:
		return fail(fmt.Errorf("%q?", a.Do))
	}
	return got
}
