package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode"

	"github.com/stretchr/testify/require"

	"gorail/gorail/doctor/peer"
	"gorail/gorail/door"
	"gorail/gorail/side"
	"gorail/gorail/study/kv/node"
	"gorail/internal/subprocess"
	"gorail/test/testenv"
)

// listener is the built tool with --listen.
type listener struct {
	place, addr string
	pid         int
	mu          sync.Mutex
	log         []string
}

func listen(t *testing.T, env testenv.Env, command, at string) *listener {
	t.Helper()
	c := exec.Command(built(t, env), command, "--listen", at)
	c.Env = append(os.Environ(), "NIXL_PLUGIN_DIR="+env.PluginDir, "NIXL_WHEEL_DIR="+env.WheelDir)
	log, err := c.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, c.Start())
	l := &listener{pid: c.Process.Pid}
	read := make(chan struct{})
	go func() {
		defer close(read)
		for s := bufio.NewScanner(log); s.Scan(); {
			l.mu.Lock()
			l.log = append(l.log, s.Text())
			l.mu.Unlock()
		}
	}()
	t.Cleanup(func() {
		_ = c.Process.Kill()
		<-read
		_ = c.Wait()
	})
	require.Eventually(t, func() bool { return strings.Count(l.said(), "\n") >= 2 }, time.Minute, time.Millisecond)
	l.place = regexp.MustCompile(`\S+#\S+`).FindString(l.said())
	l.addr, _, _ = strings.Cut(l.place, "#")
	require.NotEmpty(t, l.addr, l.said())
	return l
}

func (l *listener) said() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.log, "\n")
}

// processes is how many processes have served.
func (l *listener) processes() int { return strings.Count(l.said(), " serves ") }

// TestListenFiles: a caller with the token cannot name a file, a library, a process or a backend of the host, by any service.
func TestListenFiles(t *testing.T) {
	env := needs(t)
	dir := t.TempDir()
	l := listen(t, env, "doctor", "0")
	at := filepath.Join(dir, "written")
	for name, value := range map[string]string{"log_file": at, "stats_file": at, "libfabric_path": filepath.Join(dir, "evil.so"), "stats_socket": dir, "local_dir": dir, "secret_file": "/etc/shadow",
		"engine_config": "LOG_FILE=" + at, "some_path": at} {
		params := map[string]string{"provider": "tcp", "log": "debug", name: value}
		s, err := side.Dial(door.At(l.place))
		require.NoError(t, err)
		_, err = side.Call[side.OpenOut](s, "Open", side.OpenArgs{Name: "x", Backend: "GORAIL", Params: params, Sync: "none", Room: 1 << 20, Threads: 1}, time.Minute)
		require.ErrorContains(t, err, "parameter "+name+"=")
		require.ErrorContains(t, err, "refused from another host")
		s.End(time.Second)
		s, err = side.DialFor(door.At(l.place), node.Service)
		require.NoError(t, err)
		_, err = subprocess.Call[node.Peer](s.Client, "Open", node.OpenArgs{Name: "x", Backend: "GORAIL", Params: params, Decode: true, Prefills: 1, Shape: node.Shape{Layers: 1, Blocks: 1, Block: 4096, Slots: 1}}, time.Minute)
		require.ErrorContains(t, err, "parameter "+name+"=")
		s.End(time.Second)
	}
	for says, in := range map[string]side.OpenArgs{"process_vm": {Limit: "process_vm", Room: 1 << 20}, `backend "POSIX"`: {Backend: "POSIX"}, `backend "x/../../x"`: {Backend: "x/../../x"}, "half of what is free": {Backend: "GORAIL", Room: 1 << 50},
		"environment": {Backend: "GORAIL", Env: map[string]string{"NIXL_PLUGIN_DIR": dir}}} {
		s, err := side.Dial(door.At(l.place))
		require.NoError(t, err)
		_, err = side.Call[side.OpenOut](s, "Open", in, time.Minute)
		require.ErrorContains(t, err, says)
		s.End(time.Second)
	}
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left)

	_, log, err := gorail(append([]string{"bench", "--wheel", env.WheelDir, "--connect", l.place, "--backend", "GORAIL+log_file=" + at, "--limits", "", "--shapes", "4K", "--repeats", "1"}, short...)...)
	require.Error(t, err)
	require.Contains(t, log, "start --listen with GORAIL_LOG_FILE in its environment")
}

// TestListenToken: no token and wrong ones start nothing, whatever follows them, and are answered late. The variable gives the token as an argument does. A run's files never have it.
func TestListenToken(t *testing.T) {
	env := needs(t)
	l, other := listen(t, env, "bench", "0"), listen(t, env, "bench", "0")
	_, token, _ := strings.Cut(l.place, "#")
	require.GreaterOrEqual(t, len(token)*5, 128, "bits, of base32")
	require.NotContains(t, other.place, token)
	_, err := side.Dial(door.At(l.addr))
	require.ErrorContains(t, err, "no token: write HOST:PORT#TOKEN")
	began := time.Now()
	for _, wrong := range []string{"x", token[1:], strings.ToUpper(token), strings.Split(other.place, "#")[1]} {
		_, err := side.Dial(door.At(l.addr + "#" + wrong))
		require.ErrorContains(t, err, "wrong token: --listen makes a new one at each start")
	}
	require.GreaterOrEqual(t, time.Since(began), 4*door.Usual.Slow)
	for _, sent := range []string{"", "GORAILd1", "GET / HTTP/1.1\r\n\r\n", "GORAILd1" + strings.Repeat("\x00", 64), strings.Repeat("x", 1<<20)} {
		c, err := net.Dial("tcp", l.addr)
		require.NoError(t, err)
		_, _ = io.WriteString(c, sent)
		_ = c.(*net.TCPConn).CloseWrite()
		_ = c.SetReadDeadline(time.Now().Add(time.Minute))
		said, _ := io.ReadAll(c)
		require.LessOrEqual(t, len(said), 73)
		_ = c.Close()
	}
	require.Zero(t, l.processes(), l.said())
	require.Contains(t, l.said(), "1 wrong tokens, the last one from 127.0.0.1")

	t.Setenv(door.EnvToken, token)
	file := filepath.Join(t.TempDir(), "run.json")
	_, log, err := gorail(append([]string{"bench", "--wheel", env.WheelDir, "--connect", l.addr, "--limits", "", "--shapes", "4K", "--repeats", "1"}, short...)...)
	require.NoError(t, err, log)
	require.Equal(t, 1, l.processes())
	t.Setenv(door.EnvToken, "wrong")
	_, log, err = gorail(append([]string{"bench", "--wheel", env.WheelDir, "--connect", l.place, "--limits", "", "--shapes", "4K", "--repeats", "1", "--json", file}, short...)...)
	require.NoError(t, err, log)
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Contains(t, string(text), "--connect="+l.addr)
	require.NotContains(t, string(text), token)
}

// TestListenAddress: a port alone is that of the loopback interface. Another address brings a warning that says who can connect.
func TestListenAddress(t *testing.T) {
	env := needs(t)
	for at, want := range map[string][2]string{"0": {"127.0.0.1:", "only this host can connect"}, ":0": {"127.0.0.1:", "only this host can connect"}, "127.0.0.1:0": {"127.0.0.1:", "only this host"},
		"0.0.0.0:0": {"0.0.0.0:", "warning: every host that reaches any address of this host can connect here"}} {
		for _, command := range []string{"bench", "doctor"} {
			l := listen(t, env, command, at)
			require.True(t, strings.HasPrefix(l.addr, want[0]), "%s: %s", at, l.addr)
			require.Eventually(t, func() bool { return strings.Contains(l.said(), want[1]) }, time.Minute, time.Millisecond, l.said())
		}
	}
	_, _, err := gorail("bench", "--listen", "nonsense")
	require.ErrorContains(t, err, "write HOST:PORT, or PORT for this host alone")
}

// TestListenBounds: as many processes as may serve at a time, and the next caller is told so. Silent strangers keep nobody out. A command that is too long ends its process alone.
func TestListenBounds(t *testing.T) {
	env := needs(t)
	l := listen(t, env, "bench", "0")
	for range 3 * door.Usual.Openings {
		c, err := net.Dial("tcp", l.addr)
		require.NoError(t, err)
		defer c.Close()
	}
	var all []*side.Side
	for range door.Usual.Processes {
		s, err := side.Dial(door.At(l.place))
		require.NoError(t, err)
		defer s.End(time.Second)
		all = append(all, s)
	}
	_, err := side.Dial(door.At(l.place))
	require.ErrorContains(t, err, "as many processes serve there as may at a time")
	for _, s := range all[1:] {
		_, err := s.Greet()
		require.NoError(t, err)
		s.End(time.Second)
	}
	_, err = side.Call[side.OpenOut](all[0], "Open", side.OpenArgs{Name: strings.Repeat("x", 9<<20)}, time.Minute)
	require.Error(t, err)
	require.Eventually(t, func() bool {
		s, err := side.Dial(door.At(l.place))
		if err == nil {
			_, err = s.Greet()
			s.End(time.Second)
		}
		return err == nil
	}, time.Minute, 10*time.Millisecond)
	for _, name := range []string{"a\x1b[2J", "a\u202eb", "a\nb", strings.Repeat("x", 5000)} {
		s, err := side.Dial(door.At(l.place))
		require.NoError(t, err)
		_, err = side.Call[side.OpenOut](s, "Open", side.OpenArgs{Name: name, Backend: "GORAIL"}, time.Minute)
		require.ErrorContains(t, err, "would control a terminal")
		s.End(time.Second)
	}
}

// TestListenGone: a process ends soon after its caller has gone.
func TestListenGone(t *testing.T) {
	env := needs(t)
	l := listen(t, env, "doctor", "0")
	s, err := side.DialFor(door.At(l.place), node.Service)
	require.NoError(t, err)

	_, err = side.Call[time.Duration](s, "Clock", node.None{}, time.Minute)
	require.NoError(t, err)
	serves := regexp.MustCompile(`process ([0-9]+) serves`).FindStringSubmatch(l.said())
	require.NotNil(t, serves, l.said())
	require.DirExists(t, "/proc/"+serves[1])
	s.End(time.Second)
	require.Eventually(t, func() bool { _, err := os.Stat("/proc/" + serves[1]); return err != nil }, 2*time.Minute, 100*time.Millisecond)
}

// evil is a callee that knows the token.
type evil struct{ rails, more int }

const attack = "\x1b]0;owned\x07\x1b[2J\r\u202egnp.exe\u2066\x9b31m\xff\nPASS"

// Facts answers with text for the caller's terminal, with very many rails, or with more text than the caller has memory for.
func (e evil) Facts(_ side.None, out *peer.Facts) error {
	*out = peer.Facts{Version: attack, NIXL: attack, Err: attack + strings.Repeat("x", 10<<10+e.more), Names: map[string]bool{attack: true}, Addrs: []string{attack}}
	if e.rails > 0 {
		out.Names = map[string]bool{}
		out.Addrs = make([]string, e.rails)
	}
	return nil
}

func (evil) Now(side.None, *time.Time) error { return fmt.Errorf("no: %s", attack) }

// TestPeerText: what a callee answers reaches the terminal as printable lines, and a huge answer does not need a GiB. Without a bound, 200 MiB
// took 1.8.
func TestPeerText(t *testing.T) {
	env := needs(t)
	for says, e := range map[string]evil{"the program at": {}, "it tells of 1000 rails": {rails: 1000}, "an answer is longer than this side takes": {more: 200 << 20}} {
		// Not by the usage that wait4 tells: of a child it has our own, too, which makes the huge answer.
		c := exec.Command("sh", "-c", `ulimit -d 1048576; exec "$0" "$@"`, built(t, env), "doctor", "--fix-hints", "--peer", behind(t, e))
		c.Env = append(os.Environ(), "NIXL_PLUGIN_DIR="+env.PluginDir, "NIXL_WHEEL_DIR="+env.WheelDir, "GORAIL_PROVIDER=tcp")
		out, err := c.CombinedOutput()
		require.Error(t, err)
		require.Contains(t, string(out), says)
		require.NotContains(t, string(out), "\nPASS ?")
		bad := strings.IndexFunc(string(out), func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) })
		require.Equal(t, -1, bad, "%q", out)
		for line := range strings.Lines(string(out)) {
			require.Less(t, len(line), 8<<10)
		}
		require.NotContains(t, string(out), "out of memory")
	}
}
