package door

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// log keeps a listener's lines.
type log struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// process echoes its connection until that ends, or until it is killed.
type process struct {
	ended chan struct{}
	once  sync.Once
}

func (*process) Pid() int { return 42 }
func (p *process) Signal(syscall.Signal) error {
	p.once.Do(func() { close(p.ended) })
	return nil
}

func (p *process) Wait() (string, bool) {
	<-p.ended
	return "", true
}

// serve serves with bounds, and counts the processes.
func serve(t *testing.T, change func(*Bounds)) (l *Listener, said *log, started func() int) {
	said = &log{}
	l, err := Listen("0", said)
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	change(&l.Bounds)
	var mu sync.Mutex
	n := 0
	go func() {
		_ = l.Serve(func(c *net.TCPConn) (Process, error) {
			mu.Lock()
			defer mu.Unlock()
			if n++; n == 1000 {
				return nil, errors.New("no memory")
			}
			f, err := c.File()
			if err != nil {
				return nil, err
			}
			defer f.Close()
			fd, err := syscall.Dup(int(f.Fd())) // Fd makes it block, as package subprocess does
			if err != nil {
				return nil, err
			}
			p := &process{ended: make(chan struct{})}
			go func() {
				own := os.NewFile(uintptr(fd), "commands")
				defer own.Close()
				for b := make([]byte, 1); ; {
					if _, err := own.Read(b); err != nil { // SO_RCVTIMEO, too
						break
					}
					_, _ = own.Write(b)
				}
				_ = p.Signal(syscall.SIGKILL)
			}()
			return p, nil
		})
	}()
	return l, said, func() int { mu.Lock(); defer mu.Unlock(); return n }
}

// TestAll: after as many processes as may serve in all, nobody gets one.
func TestAll(t *testing.T) {
	l, _, started := serve(t, func(b *Bounds) { b.All = 3 })
	for range 3 {
		c, err := Dial(At(l.Place()))
		require.NoError(t, err)
		require.NoError(t, c.Close())
	}
	_, err := Dial(At(l.Place()))
	require.ErrorContains(t, err, "start it again")
	require.Equal(t, 3, started())
}

// TestTimes: a process ends after its whole time, and one whose caller sends nothing ends earlier.
func TestTimes(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Bounds)
		talk   bool
		says   string
	}{
		"whole": {func(b *Bounds) { b.Whole = 300 * time.Millisecond }, true, "process 42 is ended: it has served 127.0.0.1"},
		"idle":  {func(b *Bounds) { b.Idle = 100 * time.Millisecond }, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			l, said, _ := serve(t, c.change)
			conn, err := Dial(At(l.Place()))
			require.NoError(t, err)
			defer conn.Close()
			require.NoError(t, conn.SetReadDeadline(time.Now().Add(time.Minute)))
			if c.talk {
				_, err = conn.Write([]byte("x"))
				require.NoError(t, err)
				_, err = io.ReadFull(conn, make([]byte, 1))
				require.NoError(t, err)
			} else {
				_, err = conn.Read(make([]byte, 1))
				require.ErrorIs(t, err, io.EOF)
			}
			require.Eventually(t, func() bool {
				l.mu.Lock()
				defer l.mu.Unlock()
				return l.serving == 0
			}, time.Minute, time.Millisecond)
			require.Contains(t, said.String(), c.says)
		})
	}
}

// TestOpenings: a connection without a proof ends in time. The one that loses its place is the oldest of the source with the most.
func TestOpenings(t *testing.T) {
	l, _, started := serve(t, func(b *Bounds) { b.Opening = 50 * time.Millisecond })
	c, err := net.Dial("tcp", l.net.Addr().String())
	require.NoError(t, err)
	require.NoError(t, c.SetReadDeadline(time.Now().Add(time.Minute)))
	_, err = io.ReadAll(c)
	require.NoError(t, err)
	require.Zero(t, started())

	few := &Listener{Bounds: Bounds{Openings: 3}}
	mine := func() *opening {
		a, b := net.Pipe()
		t.Cleanup(func() { _, _ = a.Close(), b.Close() })
		return &opening{a, netip.MustParsePrefix("192.0.2.1/32")}
	}
	honest := mine()
	honest.source = netip.MustParsePrefix("192.0.2.2/32")
	few.openings = []*opening{honest, mine(), mine()}
	oldest := few.openings[1]
	conn, err := net.Dial("tcp", l.net.Addr().String())
	require.NoError(t, err)
	few.open(conn.(*net.TCPConn))
	require.Contains(t, few.openings, honest)
	require.NotContains(t, few.openings, oldest)
	require.Len(t, few.openings, 3)
	a := sourceOf(&net.TCPAddr{IP: net.ParseIP("2001:db8::1")})
	require.Equal(t, a, sourceOf(&net.TCPAddr{IP: net.ParseIP("2001:db8::ffff:0:1")}))
	require.NotEqual(t, a, sourceOf(&net.TCPAddr{IP: net.ParseIP("2001:db8:0:1::1")}))
}

// TestImpostor: a listener that does not know the token is found out, whatever it answers. It learns no token.
func TestImpostor(t *testing.T) {
	for _, answer := range [][]byte{{welcome}, {unproved}, {busy}, {99}} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		got := make(chan []byte, 1)
		go func() {
			c, err := l.Accept()
			if err != nil {
				return
			}
			defer c.Close()
			_, _ = c.Write(append([]byte(magic), make([]byte, numSize)...))
			in := make([]byte, ask)
			_, _ = io.ReadFull(c, in)
			_, _ = c.Write(append(answer, make([]byte, reply-1)...))
			got <- in
		}()
		_, err = Dial(At(l.Addr().String() + "#secret-token"))
		require.Error(t, err)
		if answer[0] != unproved {
			require.ErrorContains(t, err, "does not know the token")
		}
		require.NotContains(t, string(<-got), "secret-token")
		require.NoError(t, l.Close())
	}
}

// TestReplay: a proof of one connection is worth nothing on another.
func TestReplay(t *testing.T) {
	l, _, started := serve(t, func(b *Bounds) { b.Slow = 0 })
	var first []byte
	for range 2 {
		c, err := net.Dial("tcp", l.net.Addr().String())
		require.NoError(t, err)
		head := make([]byte, greet)
		_, err = io.ReadFull(c, head)
		require.NoError(t, err)
		if first == nil {
			own := number()
			first = append(append([]byte(magic), own...), prove(l.token, "caller", head[len(magic):], own)...)
		}
		_, err = c.Write(first)
		require.NoError(t, err)
		out := make([]byte, reply)
		_, err = io.ReadFull(c, out)
		require.NoError(t, err)
		defer c.Close()
		if started() == 1 && out[0] == welcome {
			continue
		}
		require.Equal(t, unproved, out[0])
	}
	require.Equal(t, 1, started())
}

// FuzzText: text of another host is one printable line of valid UTF-8, and not long.
func FuzzText(f *testing.F) {
	for _, s := range []string{"", "ok", "\x1b[2J\x07", "a\nb\tc\r", "\u202e\u2066\u200b", "\xff\xfe\xc0", strings.Repeat("é", 5000), "\u0085\u009b31m", "\u2028"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		out := Text(s)
		require.True(t, utf8.ValidString(out))
		require.LessOrEqual(t, len(out), 3*mostText)
		require.Equal(t, -1, strings.IndexFunc(out, func(r rune) bool { return !unicode.IsPrint(r) }), "%q", out)
	})
}

// TestLook: all texts of an answer are cleaned, those in maps and lists, too. Bytes stay as they are.
func TestLook(t *testing.T) {
	type inner struct{ Name string }
	v := struct {
		Text  string
		List  []inner
		Map   map[string]string
		Bytes []byte
		At    time.Time
		Ptr   *inner
	}{"\x1b", []inner{{"\x1b"}}, map[string]string{"\x1b": "\x1b", "ok": "ok"}, []byte("\x1b"), time.Now(), &inner{"\x1b"}}
	require.NoError(t, Answers(false).Look(&v))
	require.Equal(t, "?", v.Text)
	require.Equal(t, "?", v.List[0].Name)
	require.Equal(t, "?", v.Ptr.Name)
	require.Equal(t, map[string]string{"?": "?", "ok": "ok"}, v.Map)
	require.Equal(t, []byte("\x1b"), v.Bytes)
	require.NoError(t, Commands().Look(&v), "clean now")
	v.List[0].Name = "\u202e"
	require.Error(t, Commands().Look(&v))
}

// TestPlace: the address of a place shows no token.
func TestPlace(t *testing.T) {
	p := At("host:1#secret")
	require.Equal(t, "host:1", p.String())
	t.Setenv(EnvToken, "of the environment")
	got, err := p.secret()
	require.NoError(t, err)
	require.Equal(t, "secret", got)
	p = At("host:1")
	got, err = p.secret()
	require.NoError(t, err)
	require.Equal(t, "of the environment", got)
	t.Setenv(EnvToken, "")
	_, err = p.secret()
	require.ErrorIs(t, err, errNoToken)
	for text, want := range map[string]string{"1": "127.0.0.1:1", ":1": "127.0.0.1:1", "[::]:1": "[::]:1", "host:1": "host:1"} {
		at, err := listenAt(text)
		require.NoError(t, err)
		require.Equal(t, want, at)
	}
}
