//go:build failpoints

package engine

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"gorail/backend/failpoint"
	"gorail/test/fake"
)

// errnoOf is what a point fails with.
func errnoOf(point string) syscall.Errno {
	switch _, what, _ := strings.Cut(point, "_"); what {
	case "event_fd", "wake_fd", "epoll_fd", "rail_epoll", "events_fd", "accept", "dial", "epoll", "eventfd", "memfd", "socket", "pidfd":
		return syscall.EMFILE
	case "send":
		return syscall.EPIPE
	case "read":
		return syscall.ECONNRESET
	case "thread":
		return syscall.EAGAIN
	}
	return syscall.ENOMEM
}

// TestFailpoints lets each pass of each failpoint fail, one at a time: nothing crashes or hangs, what the engine accepted ends as it says,
// the next attempt works, and nothing is left behind. Each fabric has a process of its own. With -short only each point's first pass,
// over one fabric.
func TestFailpoints(t *testing.T) {
	plain := func(on func(testing.TB) *harness) func(testing.TB) *scenario {
		return func(t testing.TB) *scenario { return newScenario(on(t)) }
	}
	vram := func(on func(testing.TB) *harness) func(testing.TB) *scenario {
		return func(t testing.TB) *scenario {
			s := newScenario(on(t))
			s.gpus = s.withGPUs()
			return s
		}
	}
	shared := fake.EFACaps()
	shared.SharedEndpoint = true
	fabrics := []struct {
		name string
		on   func(testing.TB) *scenario
	}{
		{"fake", plain(func(t testing.TB) *harness { return onRails(t, 2, fake.TCPCaps()) })},
		{"fake-efa", plain(func(t testing.TB) *harness { return onFake(t, fake.EFACaps()) })},
		{"fake-shared", plain(func(t testing.TB) *harness { return onFake(t, shared) })},
		{"host", plain(onHost)},
		{"tcp", plain(func(t testing.TB) *harness { // always shards, so that each run has the same passes
			h := onTCP(t)
			h.params = append(h.params, "tcp_threads", "3")
			return h
		})},
		{"tcp-encrypted", plain(func(t testing.TB) *harness {
			h := onTCP(t)
			h.params = append(h.params, "encryption", "on", "compression", "auto", "tcp_threads", "3")
			return h
		})},
		{"tcp-packed", plain(func(t testing.TB) *harness {
			h := onTCP(t)
			h.params = append(h.params, "compression", "on", "tcp_threads", "1")
			return h
		})},
		{"ofi", plain(onOFI)},
		{"verbs", plain(func(t testing.TB) *harness { return onVerbs(t, 1) })},
		{"vram", vram(onHost)},
		{"vram-tcp", vram(onTCP)},
		{"staged", vram(func(t testing.TB) *harness { return onFake(t, fake.TCPCaps()) })},
		{"staged-packed", func(t testing.TB) *scenario {
			s := vram(func(t testing.TB) *harness { return onFake(t, fake.TCPCaps()) })(t)
			s.params = append(s.params, "compression", "on", "stage_size", "8MiB")
			return s
		}},
	}
	if testing.Short() {
		walk(t, fabrics[0].on, make(map[string]int))
		return
	}
	if name, list, ok := strings.Cut(os.Getenv(walkOf), " "); ok {
		for _, f := range fabrics {
			if f.name == name {
				reached := make(map[string]int)
				walk(t, f.on, reached)
				text, err := json.Marshal(reached)
				require.NoError(t, err)
				require.NoError(t, os.WriteFile(list, text, 0o600))
			}
		}
		return
	}
	lists := t.TempDir()
	t.Run("all", func(t *testing.T) {
		for _, f := range fabrics {
			t.Run(f.name, func(t *testing.T) {
				t.Parallel()
				walkAlone(t, f.name, filepath.Join(lists, f.name))
			})
		}
	})
	reached := make(map[string]int)
	for _, f := range fabrics {
		text, err := os.ReadFile(filepath.Join(lists, f.name))
		if err != nil {
			return // it has failed
		}
		var its map[string]int
		require.NoError(t, json.Unmarshal(text, &its))
		for point, n := range its {
			reached[point] += n
		}
	}
	var missed []string
	for _, name := range failpoint.Names() {
		if reached[name] == 0 {
			missed = append(missed, name)
		}
	}
	t.Logf("%d failures at %d points; not reached: %s", sum(reached), len(reached), strings.Join(missed, " "))
	if reached["ofi_rail"] > 0 { // else there is no libfabric here
		require.Subset(t, unreached, missed)
	}
}

// walkOf is the variable that names the fabric of a process, and the file for the points that it reached.
const walkOf = "GORAIL_TEST_WALK"

// walkAlone walks one fabric in a process of its own: failpoints are a process's, and most of a walk is waiting.
func walkAlone(t *testing.T, fabric, list string) {
	exe, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(exe, "-test.run=^TestFailpoints$", "-test.timeout=40m")
	cmd.Env = append(os.Environ(), walkOf+"="+fabric+" "+list)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// unreached are the points that no scenario passes: libraries may be loaded already, some points need luck, hardware or another process.
var unreached = []string{"ofi_calls", "ofi_cxi_key", "verbs_calls", "core_event", "core_held_fd", "core_notif_skip", "core_notif_detached", "peer_pidfd", "tcp_spill", "tcp_rest",
	"tcp_early", "tcp_opened", "tcp_sealed", "cma_view", "cma_views",
	"tcp_bulk", "tcp_import", "tcp_imports", "tcp_job", "tcp_job_here", "tcp_job_imports", "tcp_job_ranges", "tcp_vram", // NVLink between hosts: no scenario has it
}

func sum(of map[string]int) (n int) {
	for _, v := range of {
		n += v
	}
	return n
}

// walk lets passes of all points fail on one fabric.
func walk(t *testing.T, on func(testing.TB) *scenario, reached map[string]int) {
	one := func(name, point string, n int) {
		var begun *left
		ok := t.Run(name, func(t *testing.T) {
			now := leftNow()
			begun = &now
			watchdog := time.AfterFunc(5*time.Minute, func() { panic(t.Name() + " hangs") })
			t.Cleanup(func() { watchdog.Stop() })
			s := on(t) // may skip
			failpoint.Arm(point, n, errnoOf(point))
			s.run()
		})
		if ok && begun != nil { // else -run leaves it out
			begun.check(t, name)
		}
	}
	one("none", failpoint.Names()[0], 0) // libraries are loaded, threads are there
	one("again", failpoint.Names()[0], 0)
	passes := make(map[string]int)
	for _, point := range failpoint.Names() {
		passes[point] = failpoint.Passes(point)
	}
	for _, point := range failpoint.Names() {
		for n := 1; n <= passes[point]; n += 1 + n/3 {
			one(fmt.Sprint(point, "/", n), point, n)
			if failpoint.Passes(point) >= n {
				reached[point]++
			}
			if testing.Short() {
				break
			}
		}
	}
}

// left is what a scenario must not leave behind.
type left struct {
	files, segments int
	routines        goleak.Option
}

func leftNow() left {
	files, _ := os.ReadDir("/proc/self/fd")
	maps, _ := os.ReadFile("/proc/self/maps")
	return left{len(files), bytes.Count(maps, []byte("memfd:gorail")), goleak.IgnoreCurrent()}
}

func (l left) check(t *testing.T, name string) {
	if err := goleak.Find(l.routines); err != nil {
		t.Errorf("%s: goroutines are left: %v", name, err)
	}
	now := leftNow()
	for end := time.Now().Add(patience); (now.files > l.files || now.segments > l.segments) && time.Now().Before(end); now = leftNow() {
		time.Sleep(time.Millisecond)
	}
	if now.files > l.files || now.segments > l.segments {
		t.Errorf("%s: %d descriptors and %d segments are left: %v", name, now.files-l.files, now.segments-l.segments, descriptors())
	}
}

func descriptors() (names []string) {
	list, _ := os.ReadDir("/proc/self/fd")
	for _, e := range list {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil {
			names = append(names, e.Name()+" "+to)
		}
	}
	slices.Sort(names)
	return names
}

// What TestNoFailpoints looks for is here with the tag.
func TestFailpointsAreHere(t *testing.T) {
	exe, err := os.ReadFile("/proc/self/exe")
	require.NoError(t, err)
	require.Len(t, foundIn(exe), len(traces()))
}
