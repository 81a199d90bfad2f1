package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/gorail/bench/layout"
	"gorail/gorail/door"
	"gorail/gorail/drive"
	"gorail/gorail/measure"
	"gorail/gorail/report"
	"gorail/gorail/side"
	"gorail/test/cuda"
	"gorail/test/skip"
)

// short keeps a run short: its results do not matter here.
var short = []string{"--time", "20ms", "--warmup_iter", "2", "--timeout", "1m"}

// bench runs gorail bench and returns its JSON output. Every sample must have succeeded.
func bench(t *testing.T, args ...string) *measure.Run {
	file := filepath.Join(t.TempDir(), "run.json")
	out, log, err := gorail(append(append([]string{"bench", "--json", file}, short...), args...)...)
	require.NoError(t, err, "%s\n%s", out, log)
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	r := &measure.Run{}
	require.NoError(t, json.Unmarshal(text, r))
	for _, s := range r.Samples {
		require.Empty(t, s.Failed)
		require.NotZero(t, s.Wall)
		if s.Point.Transfers() {
			require.True(t, s.Verified, "%s %+v", s.Subject, s.Point)
			require.NotZero(t, s.Done)
			require.Equal(t, s.Done, s.Lat.Count())
			require.Positive(t, s.Lat.Quantile(0.5))
		}
	}
	return r
}

// TestBenchCompare: two backends and the limits take turns, twice. Every point of each is present. Ratios and a page
// can be made.
func TestBenchCompare(t *testing.T) {
	env := needs(t)
	most := children(t)
	r := bench(t, "--wheel", env.WheelDir, "--compare", "GORAIL,UCX", "--op_type", "write,READ", "--shapes", "64,20x1K", "--repeats", "2", "--mode", "transfer,notify,idle")
	require.Equal(t, 2, most(), "only the pair whose turn it is lives")
	require.Equal(t, []string{"GORAIL", "UCX"}, r.Subjects)
	require.Equal(t, measure.Limits, r.Limits)
	require.Len(t, r.Samples, 2*(2*(4+2)+3*4))
	require.Len(t, r.Pairs, 4)
	for _, p := range r.Pairs {
		require.NotZero(t, p.Create)
		require.NotZero(t, p.First)
		require.Positive(t, p.Threads[0], p.Subject)
		require.Positive(t, p.MiB[0], p.Subject)
	}
	for _, s := range r.Samples {
		if s.Point.Transfers() {
			require.Positive(t, s.CPU[0], "%s %+v", s.Subject, s.Point)
		}
		if s.Point.Transfers() && slices.Contains(r.Subjects, s.Subject) {
			require.Equal(t, s.Done, s.Post.Count(), "%s %+v", s.Subject, s.Point)
			require.LessOrEqual(t, s.Post.Quantile(0.5), s.Lat.Quantile(0.5))
		}
	}
	for _, p := range r.Points() {
		for _, s := range r.Subjects {
			require.Len(t, r.Cell(s, p).Samples, 2)
		}
		if p.Transfers() {
			require.Positive(t, measure.Ratio(r.Cell("GORAIL", p), r.Cell("UCX", p), measure.Sample.GBps).Median)
		}
	}
	require.Equal(t, "GORAIL", r.Samples[0].Subject)
	require.NotEqual(t, "GORAIL", r.Samples[len(r.Samples)/2].Subject, "another begins the second repeat")

	page := filepath.Join(t.TempDir(), "page.md")
	require.NoError(t, os.WriteFile(page, []byte("by hand\n"+report.Begin+"\nold\n"+report.End+"\nby hand, too\n"), 0o644))
	file := filepath.Join(t.TempDir(), "r.json")
	require.NoError(t, writeRun(file, r))
	_, _, err := gorail("page", "--page", page, file)
	require.NoError(t, err)
	text, _ := os.ReadFile(page)
	require.Contains(t, string(text), "| WRITE 20 x 1 KiB |")
	require.Contains(t, string(text), "--compare=GORAIL,UCX")
	require.NotContains(t, string(text), "old")
	_, _, err = gorail("report", "--dir", filepath.Join(filepath.Dir(page), "all"), file)
	require.NoError(t, err)
	text, _ = os.ReadFile(filepath.Join(filepath.Dir(page), "all", "report.md"))
	require.Contains(t, string(text), "| 20 x 1 KiB | GORAIL |")
}

func writeRun(file string, r *measure.Run) error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return os.WriteFile(file, text, 0o644)
}

// children counts our live child processes, and returns the maximum.
func children(t *testing.T) (most func() int) {
	stop, got := make(chan struct{}), make(chan int)
	pause := 5 * time.Millisecond
	if testing.Short() {
		pause = 20 * time.Millisecond // a look at all processes takes a millisecond
	}
	self := fmt.Sprint(os.Getpid())
	count := func() (n int) {
		dirs, _ := filepath.Glob("/proc/[0-9]*/stat")
		for _, d := range dirs {
			text, _ := os.ReadFile(d)
			_, rest, _ := strings.Cut(string(text), ") ") // state, parent
			if f := strings.Fields(rest); len(f) > 1 && f[1] == self && f[0] != "Z" {
				n++
			}
		}
		return n
	}
	go func() {
		n := 0
		for {
			select {
			case <-stop:
				got <- n
				return
			case <-time.After(pause):
				n = max(n, count())
			}
		}
	}()
	var once sync.Once
	t.Cleanup(func() { once.Do(func() { close(stop); <-got }) })
	return func() (n int) {
		once.Do(func() { close(stop); n = <-got })
		return n
	}
}

// TestBenchScattered: adjacent and scattered descriptors, without notifications, in the agents' sync modes, all
// verified.
func TestBenchScattered(t *testing.T) {
	env := needs(t)
	for _, args := range [][]string{{"--sync", "strict"}, {"--no_notif", "--dense", "--sync", "rw"}} {
		r := bench(t, append(args, "--wheel", env.WheelDir, "--start_block_size", "1K", "--max_block_size", "4K", "--start_batch_size", "8",
			"--max_batch_size", "16", "--op_type", "READ,WRITE", "--repeats", "1", "--limits", "")...)
		require.Len(t, r.Samples, 2*2*3)
		for _, s := range r.Samples {
			require.Equal(t, slices.Contains(args, "--dense"), s.Point.Dense)
		}
	}
}

// TestBenchLoad: several threads, several transfers in flight, a fixed number of transfers, a sleeping target.
func TestBenchLoad(t *testing.T) {
	env := needs(t)
	r := bench(t, "--wheel", env.WheelDir, "--shapes", "256", "--num_threads", "1,3", "--depth", "1,4", "--num_iter", "30", "--repeats", "1", "--limits", "memcpy,tcp",
		"--target", "sleeps", "--enable_pt")
	require.Len(t, r.Samples, 4+2*2)
	for _, s := range r.Samples {
		require.EqualValues(t, 30, s.Done, "%+v", s.Point)
	}
	require.Contains(t, r.Setup, "sync mode rw")
}

// TestBenchTwoHosts: a listener starts the target and takes no environment from the other host.
func TestBenchTwoHosts(t *testing.T) {
	env := needs(t)
	t.Setenv("NIXL_PLUGIN_DIR", env.PluginDir)
	t.Setenv("NIXL_WHEEL_DIR", env.WheelDir)
	l, err := door.Listen("0", io.Discard)
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() { done <- side.Listen(l) }()
	r := bench(t, "--connect", l.Place(), "--shapes", "4K", "--repeats", "1")
	require.Equal(t, []string{"memcpy", "tcp"}, r.Limits)
	require.Len(t, r.Samples, 3)

	_, log, err := gorail(append([]string{"bench", "--connect", l.Place(), "--compare", "GORAIL+LD_BIND_NOW=1", "--limits", "", "--shapes", "4K", "--repeats", "1"}, short...)...)
	require.ErrorContains(t, err, "1 points failed")
	require.Contains(t, log, "have to be set where --listen runs")
	require.NoError(t, l.Close())
	require.Error(t, <-done)
}

func TestBenchFlags(t *testing.T) {
	for _, tt := range []struct{ says, args string }{
		{"--memory", "--memory tape"}, {"--op_type", "--op_type PUT"}, {"--mode", "--mode fast"}, {"--shapes", "--shapes 4Q"}, {"--limits", "--limits light"},
		{"--sync", "--sync all"}, {"--target", "--target dies"}, {"--output", "--output xml"}, {"1 or more", "--num_threads 0"}, {"1 or more", "--start_block_size 0"},
		{"nothing to measure", "--start_block_size 1M --max_block_size 4K"}, {"nothing to measure", "--total_buffer_size 1K"},
		{"no backend NOSUCH", "--backend NOSUCH"}, {"named twice", "--compare UCX,UCX"}, {"not KEY=VALUE", "--compare UCX+tcp"},
		{"no layout", "--layout gpt"}, {"llama-70b-tp8", "--layout gpt"}, {"--ids", "--layout blocks --ids worst"}, {"--shapes is for", "--layout blocks --shapes 4K"},
		{"1 or more", "--layout blocks --block-size 0"}, {"1 or more", "--blocks 0"}, {"no scheme", "--scheme ring"}, {"as many targets", "--initiators 2"}, {"divides", "--scheme tp --initiators 2 --targets 3"},
		{"wants memory of a GPU", "--busy-gpu"}, {"wants memory of a GPU", "--gpus 0"}, {"no memory", "--target_seg_type OBJ"}, {"one initiator and one target", "--scheme manytoone --initiators 2 --mode notify"},
		{"--mode MG", "--mode MG"}, {"json=run.json", "--output json="},
		{"not a size", "--max_block_size lots"}, {"unknown flag", "--fast"},
	} {
		_, _, err := gorail(append([]string{"bench", "--wheel", t.TempDir()}, strings.Fields(tt.args)...)...)
		require.ErrorContains(t, err, tt.says, tt.args)
	}
}

// port returns a port that was free.
func port(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().String()
}

// etcd starts a server until the end of the test.
func etcd(t *testing.T) (url string, stop func()) {
	path, err := exec.LookPath("etcd")
	if err != nil {
		err = errors.New("no etcd: apt-get install etcd-server (tools/test-all.sh unpacks it)")
		if testing.Short() { // its package starts a service, so tools/setup.sh leaves it to the user
			t.Skip(err)
		}
		skip.OrFail(t, err)
	}
	url, peers := "http://"+port(t), "http://"+port(t)
	c := exec.Command(path, "--data-dir", t.TempDir(), "--listen-client-urls", url, "--advertise-client-urls", url, "--listen-peer-urls", peers,
		"--initial-advertise-peer-urls", peers, "--initial-cluster", "default="+peers, "--log-level", "error")
	require.NoError(t, c.Start())
	stop = func() {
		_ = c.Process.Kill()
		_ = c.Wait()
	}
	t.Cleanup(stop)
	require.Eventually(t, func() bool { return drive.ReachEtcd(url) == nil }, time.Minute, 20*time.Millisecond)
	return url, stop
}

// TestBenchEtcd: a real server carries the metadata of all agents of all processes. A server that is away is named before anything starts.
func TestBenchEtcd(t *testing.T) {
	env := needs(t)
	url, stop := etcd(t)
	args := append(small, "--wheel", env.WheelDir, "--etcd", url, "--shapes", "4K", "--agents", "2", "--scheme", "manytoone", "--initiators", "2")
	r := bench(t, args...)
	require.Len(t, r.Samples, 1)
	stop()
	_, _, err := gorail(append([]string{"bench"}, args...)...)
	require.ErrorContains(t, err, "--etcd: no etcd server answers")
}

// TestBenchEtcdDies: the server dies while two connected processes transfer. They go on, and end. The next processes would need the server:
// the error names it, and what was measured before is kept.
func TestBenchEtcdDies(t *testing.T) {
	env := needs(t)
	url, stop := etcd(t)
	c := config(t, env)
	c.Points, c.Repeats, c.Etcd = c.Points[:2], 2, url
	steps := 0
	c.Step = func(string) {
		if steps++; steps == 2 {
			stop()
		}
	}
	var said []string
	c.Warn = func(_ string, why error) { said = append(said, why.Error()) }
	r := c.Run(t.Context())
	t.Log(said)
	require.Len(t, r.Samples, 3)
	for _, s := range r.Samples[:2] {
		require.Empty(t, s.Failed)
		require.True(t, s.Verified)
	}
	require.Contains(t, r.Samples[2].Failed, "etcd server "+url+": no etcd server answers")
}

// small are flags of runs whose figures do not matter.
var small = []string{"--repeats", "1", "--limits", ""}

// TestBenchBlocks: blocks by their ids, in every order, with several in flight, in both directions, also by the limits. Making, posting
// and the rest are timed apart.
func TestBenchBlocks(t *testing.T) {
	env := needs(t)
	r := bench(t, "--wheel", env.WheelDir, "--layout", "blocks", "--block-size", "100", "--blocks", "40", "--depth", "1,2", "--threads", "2", "--op_type", "WRITE,READ", "--repeats", "1")
	require.Len(t, r.Samples, 2*2+2*3, "with depth 1 the limits, too")
	for _, s := range r.Samples {
		require.Equal(t, measure.Point{Op: s.Point.Op, Block: 100, Batch: 40, Depth: s.Point.Depth, Threads: 2, Dense: true, IDs: layout.Random, Pool: 2}, s.Point)
		if s.Subject == "GORAIL" {
			require.Equal(t, s.Done, s.Makes.Count())
			require.Equal(t, s.Done, s.Post.Count())
			require.Positive(t, s.Make)
		}
	}
	for _, ids := range []string{layout.Runs, layout.InOrder} {
		r = bench(t, append(small, "--wheel", env.WheelDir, "--layout", "blocks", "--block-size", "64", "--blocks", "40", "--pool", "1", "--ids", ids)...)
		require.Len(t, r.Samples, 1)
		require.Contains(t, r.Setup, "ids "+ids)
	}
	r = bench(t, append(small, "--wheel", env.WheelDir, "--layout", "deepseek-mla", "--blocks", "2", "--num_iter", "2")...)
	require.EqualValues(t, 73_728, r.Samples[0].Point.Block)
	require.Equal(t, 2, r.Samples[0].Point.Batch)
}

// TestBenchSchemes: the bytes of all initiators and targets arrive, in each scheme, also parts of blocks.
func TestBenchSchemes(t *testing.T) {
	env := needs(t)
	for args, scheme := range map[string]string{
		"--initiators 2 --targets 2":                                    "pairwise",
		"--scheme manytoone --num_initiator_dev 2":                      "manytoone",
		"--scheme onetomany --targets 2 --num_target_dev 2":             "onetomany",
		"--scheme tp --initiators 2 --targets 1 --memory memfd":         "tp",
		"--scheme tp --initiators 1 --targets 2 --target_seg_type DRAM": "tp",
	} {
		shapes := []string{"--layout blocks --blocks 3 --block_size 300", "--shapes 3x300"}
		if testing.Short() {
			shapes = shapes[:1]
		}
		for _, shape := range shapes {
			words := append(strings.Fields(args), strings.Fields(shape)...)
			r := bench(t, append(append(small, words...), "--wheel", env.WheelDir, "--op_type", "WRITE,READ", "--depth", "2")...)
			require.Len(t, r.Samples, 2)
			require.Contains(t, r.Setup, "("+scheme+") on one host", args)
			for _, s := range r.Samples {
				require.Positive(t, s.CPU[0])
				require.Positive(t, s.CPU[1])
			}
		}
	}
}

// gpus lets the processes see the imitation's two GPUs, or with GORAIL_TEST_CUDA this machine's.
func gpus(t *testing.T) {
	path := os.Getenv("GORAIL_TEST_CUDA")
	if path == "" {
		path = cuda.Build(t).Path
	}
	t.Setenv("GORAIL_CUDA_PATH", path)
}

// TestBenchGPUs: memory of two GPUs, of both kinds, and of a GPU at one side only. Every byte is compared.
func TestBenchGPUs(t *testing.T) {
	env := needs(t)
	gpus(t)
	for _, args := range []string{"--memory vram --gpus 0,1", "--memory VRAM --enable_vmm --gpus 1", "--initiator_seg_type VRAM --target_seg_type DRAM",
		"--memory vram --layout blocks --blocks 5 --block_size 4K --gpus 0,1", "--memory vram --gpus 0,1,1 --scheme manytoone --initiators 2"} {
		words := strings.Fields(args)
		if !strings.Contains(args, "layout") {
			words = append(words, "--shapes", "4K,3x100")
		}
		r := bench(t, append(append(small, words...), "--wheel", env.WheelDir, "--op_type", "WRITE,READ", "--num_iter", "3")...)
		require.NotEmpty(t, r.GPUs, args)
		require.Empty(t, r.Limits)
	}
}

// TestBenchBusy: a load beside transfers. The imitation has no processors for it, and says so; the transfers alone are kept.
func TestBenchBusy(t *testing.T) {
	env := needs(t)
	gpus(t)
	file := filepath.Join(t.TempDir(), "run.json")
	args := append(append([]string{"bench", "--wheel", env.WheelDir, "--memory", "vram", "--gpus", "0,1", "--shapes", "4K", "--busy-gpu", "--output", "table,json=" + file}, small...), short...)
	out, log, err := gorail(args...)
	text, _ := os.ReadFile(file)
	r := &measure.Run{}
	require.NoError(t, json.Unmarshal(text, r), log)
	require.Len(t, r.Samples, 2)
	if os.Getenv("GORAIL_TEST_CUDA") != "" {
		require.NoError(t, err, log)
		require.Contains(t, out, "Transfers beside kernels on the GPUs")
		return
	}
	require.ErrorContains(t, err, "1 points failed")
	require.Contains(t, log, "GPU 0 cannot be kept busy: the kernel of the load")
	require.Contains(t, out, "4 KiB")
}
