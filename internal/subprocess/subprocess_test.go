package subprocess_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"gorail/internal/subprocess"
)

const service = "Test"

// Server is the server in the second process of these tests.
type Server struct{}

// Echo prints its input and returns it with the pid.
func (Server) Echo(in string, out *Said) error {
	fmt.Println(in)
	*out = Said{os.Getpid(), in, os.Getenv("SUBPROCESS_TEST")}
	return nil
}

// Fail returns an error.
func (Server) Fail(in string, _ *Said) error { return errors.New(in) }

// Die ends the process.
func (Server) Die(status int, _ *Said) error { os.Exit(status); return nil }

// Sleep takes the given time.
func (Server) Sleep(d time.Duration, _ *Said) error { time.Sleep(d); return nil }

// Said is the reply of Echo.
type Said struct {
	Pid       int
	Text, Env string
}

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == "serve" {
		if err := subprocess.Serve(service, Server{}); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

var serve = subprocess.Options{Args: []string{"serve"}, Setenv: []string{"SUBPROCESS_TEST=yes"}}

func start(t *testing.T) *subprocess.Client {
	c, err := subprocess.Start(serve, service)
	require.NoError(t, err)
	t.Cleanup(c.Kill)
	return c
}

// TestCall: commands and errors arrive, Output returns the process's output, and the process ends by itself.
func TestCall(t *testing.T) {
	c := start(t)
	said, err := subprocess.Call[Said](c, "Echo", "hello", time.Minute)
	require.NoError(t, err)
	require.Equal(t, Said{c.Pid(), "hello", "yes"}, said)
	_, err = subprocess.Call[Said](c, "Fail", "no", time.Minute)
	require.EqualError(t, err, "no")
	require.Eventually(t, func() bool { return c.Output() == "hello\n" }, time.Minute, time.Millisecond)
	c.Forget()
	require.Empty(t, c.Output())
	c.End(time.Minute)
	how, ok := c.Wait()
	require.True(t, ok, how)
	_, err = subprocess.Call[Said](c, "Echo", "hello", time.Minute)
	require.Error(t, err)
}

// TestGone: a process that dies or does not answer in time has ended when the command returns.
func TestGone(t *testing.T) {
	for name, c := range map[string]struct {
		method string
		arg    any
		says   string
	}{
		"dies":  {"Die", 3, "the process died in Die: exit status 3"},
		"hangs": {"Sleep", time.Hour, "the process died in Sleep: no answer within [0-9]+ms, so it was killed"},
	} {
		t.Run(name, func(t *testing.T) {
			p := start(t)
			limit := time.Minute
			if c.method == "Sleep" {
				limit = 50 * time.Millisecond
			}
			_, err := subprocess.Call[Said](p, c.method, c.arg, limit)
			require.Error(t, err)
			require.Regexp(t, "^"+c.says+"$", err.Error())
			_, gone := errors.AsType[*subprocess.Gone](err)
			require.True(t, gone)
			_, ok := p.Wait()
			require.False(t, ok)
		})
	}
}

// TestListener: a process takes its commands from the first connection to an inherited listener.
func TestListener(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	f, err := l.(*net.TCPListener).File()
	require.NoError(t, err)
	p, err := subprocess.Exec(serve, f)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	require.NoError(t, l.Close())
	conn, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	c := subprocess.Connect(conn, service, p)
	t.Cleanup(c.Kill)
	said, err := subprocess.Call[Said](c, "Echo", "far", time.Minute)
	require.NoError(t, err)
	require.Equal(t, p.Pid(), said.Pid)

	// A process that another program ends.
	theirs := subprocess.Connect(conn, service, nil)
	require.Zero(t, theirs.Pid())
}

// TestServeAlone: a program that Exec did not start reports that.
func TestServeAlone(t *testing.T) {
	p, err := subprocess.Exec(serve, func() *os.File { f, _ := os.Open("/dev/null"); return f }())
	require.NoError(t, err)
	_, ok := p.Wait()
	require.False(t, ok)
	require.Contains(t, p.Output(), "no connection was inherited")
}

// TestFar: a process with bounds. Long commands and answers end the connection, and nothing else; a silent caller ends the process, unless a
// command is at work; texts of errors are looked at.
func TestFar(t *testing.T) {
	pair := func(server, client subprocess.Far, idle time.Duration) (c *subprocess.Client, ended chan error) {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		require.NoError(t, err)
		tv := unix.NsecToTimeval(int64(idle))
		require.NoError(t, unix.SetsockoptTimeval(fds[1], unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv))
		here := os.NewFile(uintptr(fds[0]), "here")
		conn, err := net.FileConn(here)
		require.NoError(t, err)
		require.NoError(t, here.Close())
		ended = make(chan error, 1)
		go func() {
			ended <- subprocess.ServeConn(os.NewFile(uintptr(fds[1]), "there"), map[string]any{service: Server{}}, server)
		}()
		c = subprocess.ConnectFar(conn, service, nil, client)
		t.Cleanup(func() { c.End(time.Second) })
		return c, ended
	}
	big := string(make([]byte, 1<<20))
	c, ended := pair(subprocess.Far{Most: 1 << 10}, subprocess.Far{}, time.Minute)
	_, err := subprocess.Call[Said](c, "Echo", "small", time.Minute)
	require.NoError(t, err)
	_, err = subprocess.Call[Said](c, "Fail", big, time.Minute)
	require.Error(t, err)
	require.NoError(t, <-ended)

	c, _ = pair(subprocess.Far{}, subprocess.Far{Most: 1 << 10, Text: func(string) string { return "looked at" }}, time.Minute)
	_, err = subprocess.Call[Said](c, "Fail", "x", time.Minute)
	require.EqualError(t, err, "looked at")
	_, err = subprocess.Call[Said](c, "Fail", big, time.Minute)
	require.ErrorContains(t, err, "an answer is longer than this side takes")

	c, ended = pair(subprocess.Far{Calls: 1}, subprocess.Far{}, 50*time.Millisecond)
	_, err = subprocess.Call[Said](c, "Sleep", 300*time.Millisecond, time.Minute)
	require.NoError(t, err, "a command at work keeps the process")
	require.NoError(t, <-ended, "the caller says nothing more")

	const idle = 2 * time.Second
	c, ended = pair(subprocess.Far{Calls: 1}, subprocess.Far{}, idle)
	began := time.Now()
	c.Beat(service+".Echo", 20*time.Millisecond)
	require.Eventually(t, func() bool { return time.Since(began) > 2*idle }, time.Minute, 10*time.Millisecond)
	_, err = subprocess.Call[Said](c, "Echo", "x", time.Minute)
	require.NoError(t, err, "a caller whose own work takes long is not given up")
	require.Empty(t, ended)

	look := func(any) error { return errors.New("not this") }
	c, _ = pair(subprocess.Far{Look: look, Calls: 1}, subprocess.Far{}, time.Minute)
	for range 3 { // a refused command leaves its place
		_, err = subprocess.Call[Said](c, "Echo", "x", time.Minute)
		require.EqualError(t, err, "not this")
	}
}
