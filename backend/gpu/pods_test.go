package gpu_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/backend/gpu"
	"gorail/internal/pattern"
	"gorail/test/cuda"
	"gorail/test/skip"
	"gorail/test/walls"
)

func TestMain(m *testing.M) {
	walls.MaybeEnter()
	os.Exit(m.Run())
}

// TestPods: three containers with all walls between them, each with its own process 1. One maps and copies memory of the two
// others, which have equal process numbers.
func TestPods(t *testing.T) {
	lib := cuda.Build(t)
	node := filepath.Join(t.TempDir(), "node")
	require.NoError(t, os.Mkdir(node, 0o755))
	inPods(t, lib.Path, 4*mib, "1", "GORAIL_TEST_GPU_NODE="+node)
}

// TestRealPods is TestPods with this machine's GPUs. It logs the driver's IPC handle and speeds.
func TestRealPods(t *testing.T) {
	path := os.Getenv("GORAIL_TEST_CUDA")
	if path == "" {
		t.Skip("wants a GPU: make test-gpu")
	}
	theirs := "0"
	if found, _ := filepath.Glob("/dev/nvidia[0-9]*"); len(found) > 1 {
		theirs = "1"
	}
	inPods(t, path, 256*mib, theirs)
}

const (
	envImporter = "GORAIL_TEST_GPU_IMPORTER" // the driver's path
	envSize     = "GORAIL_TEST_GPU_SIZE"     // bytes of each memory
	owners      = 2
)

// inPods runs TestPodImporter and its owners. GPU 0 is visible to the importer, and theirs to the owners.
func inPods(t *testing.T, path string, size uint64, theirs string, setenv ...string) {
	skip.UnlessRoot(t, "needs root to create namespaces")
	skip.OrFail(t, (&walls.Container{}).Possible())
	files := filepath.Dir(t.TempDir())
	require.NoError(t, os.Chmod(files, 0o755))
	start := func(name, test string, ends []*os.File, env ...string) *exec.Cmd {
		c := walls.Container{Name: name, Mounts: []walls.Mount{{Host: files, At: files}}}
		cmd := exec.Command("/proc/self/exe", "-test.run=^"+test+"$", "-test.v="+strconv.FormatBool(test == "TestPodImporter"))
		cmd.Env = append(append(append(os.Environ(), c.Setenv()), setenv...), env...)
		cmd.ExtraFiles, cmd.Stderr = ends, os.Stderr
		cmd.SysProcAttr = c.Attr()
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWNET
		return cmd
	}
	var ends []*os.File
	for range owners {
		pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
		require.NoError(t, err)
		remote, ours := os.NewFile(uintptr(pair[1]), "remote"), os.NewFile(uintptr(pair[0]), "ours")
		inR, inW, err := os.Pipe()
		require.NoError(t, err)
		outR, outW, err := os.Pipe()
		require.NoError(t, err)
		cmd := start("owner", "TestPeerProcess", []*os.File{remote}, "GORAIL_TEST_GPU_PEER="+path, "CUDA_VISIBLE_DEVICES="+theirs)
		cmd.Stdin, cmd.Stdout = inR, outW
		require.NoError(t, cmd.Start())
		for _, f := range []*os.File{remote, inR, outW} {
			f.Close()
		}
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
		ends = append(ends, inW, outR, ours)
	}
	cmd := start("importer", "TestPodImporter", ends, envImporter+"="+path, envSize+"="+strconv.FormatUint(size, 10), "CUDA_VISIBLE_DEVICES=0")
	var out bytes.Buffer
	cmd.Stdout = &out
	err := cmd.Start()
	for _, f := range ends {
		f.Close()
	}
	require.NoError(t, err)
	err = cmd.Wait()
	t.Log(out.String())
	require.NoError(t, err)
	require.Contains(t, out.String(), "--- PASS: TestPodImporter")
}

// TestPodImporter is not a test: inPods runs it in a container.
func TestPodImporter(t *testing.T) {
	path := os.Getenv(envImporter)
	if path == "" {
		t.Skip("the importing process of other tests")
	}
	require.Equal(t, 1, os.Getpid())
	size, err := strconv.ParseUint(os.Getenv(envSize), 10, 64)
	require.NoError(t, err)
	r := openAt(t, nil, path)
	var from []*peer
	for i := range owners {
		fd := uintptr(3 + 3*i)
		conn, err := net.FileConn(os.NewFile(fd+2, "fds"))
		require.NoError(t, err)
		in := os.NewFile(fd, "in")
		from = append(from, &peer{t: t, in: json.NewEncoder(in), out: json.NewDecoder(bufio.NewReader(os.NewFile(fd+1, "out"))), fds: conn.(*net.UnixConn)})
		t.Cleanup(func() { in.Close() })
	}
	local := r.alloc(0, cuda.Device, size)
	for _, kind := range []string{"ipc", "vmm", "shared"} {
		t.Run(kind, func(t *testing.T) {
			r := *r
			r.T = t
			r.importBoth(kind, from, local, size)
		})
	}
}

// importBoth maps memory of both owners at once, and copies both ways.
func (r *rig) importBoth(kind string, from []*peer, local, size uint64) {
	var maps []*gpu.Map
	var at []uint64
	for i, p := range from {
		p.t = r.T
		pieces := 1
		a := ask{Do: "alloc", Kind: kind, Size: size}
		if kind == "vmm" {
			pieces = int(size / cuda.Granule)
			a.N, a.Size = pieces, cuda.Granule
		}
		got := p.ask(a)
		s := share(got.Share)
		p.ask(ask{Do: "write", At: got.At, Data: noise(int64(i), mib)})
		m, importer, err := r.drv.Map(s, 0)
		if kind == "ipc" {
			r.Logf("handle of owner %d: % x; its GPU here: %d", i, s[72:], r.drv.Find(s.GPU()))
			require.ErrorIs(r, err, gpu.SamePID, "all processes are process 1")
			m, err = r.drv.MapProved(s, 0, p.prove(got.At, size))
		}
		require.NoError(r, err)
		if require.Equal(r, kind != "ipc", importer); importer {
			addPieces(r.T, p, m, got.At, size, pieces, 50)
		}
		state, err := m.State()
		require.NoError(r, err)
		require.Equal(r, gpu.MapReady, state)
		maps, at = append(maps, m), append(at, got.At)
	}
	j := r.job(r.stream(0, gpu.ToHost))
	for i, p := range from {
		for _, how := range []gpu.How{gpu.Kernel, gpu.Engine} {
			ops := r.drv.Ops(1)
			copyMiB := func(write bool) {
				ops[0] = gpu.Op{Local: local, Remote: at[i], Len: mib}
				r.run(j, gpu.Work{Ops: ops, Write: write, Delta: maps[i].At(at[i]) - at[i], How: how})
			}
			copyMiB(false)
			want := noise(int64(i), mib)
			if how == gpu.Engine {
				want = noise(int64(10+i), mib)
			}
			pattern.Same(r, want, r.app.Read(0, local, mib), "READ of owner %d", i)
			r.app.Write(0, local, noise(int64(10+i), mib))
			copyMiB(true)
			pattern.Same(r, noise(int64(10+i), mib), p.ask(ask{Do: "read", At: at[i], Size: mib}).Data, "WRITE to owner %d", i)
			ops[0].Len = size
			var speed [2]float64
			for write := range speed {
				begin := time.Now()
				for range 5 {
					r.run(j, gpu.Work{Ops: ops, Write: write == 1, Delta: maps[i].At(at[i]) - at[i], How: how})
				}
				speed[write] = 5 * float64(size) / time.Since(begin).Seconds() / 1e9
			}
			r.Logf("owner %d, method %d: READ %.0f, WRITE %.0f GB/s", i, how, speed[0], speed[1])
			r.drv.FreeOps(ops)
		}
	}
	for _, m := range maps {
		require.NoError(r, m.Close())
	}
}
