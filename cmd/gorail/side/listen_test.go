package side

import (
	"bytes"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/backend/option"
)

// TestMain lets this program be a process of a listener.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == Command {
		if err := Main(); err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// said is a log that several goroutines write to.
type said struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *said) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *said) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func serve(t *testing.T) (*Listener, *said) {
	t.Helper()
	log := &said{}
	l, err := Listen("127.0.0.1:0", log)
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() { ended <- l.Serve(Command) }()
	t.Cleanup(func() {
		require.NoError(t, l.Close())
		require.ErrorIs(t, <-ended, net.ErrClosed)
	})
	return l, log
}

// Who has the token gets a process. Who has another one, or none, gets none, and learns nothing that would let him in.
func TestToken(t *testing.T) {
	l, log := serve(t)
	s, err := Dial(l.Addr())
	require.NoError(t, err)
	hello, err := s.Greet()
	require.NoError(t, err)
	require.Equal(t, Protocol, hello.Protocol)
	require.NoError(t, s.Close())

	at := WithoutToken(l.Addr())
	_, err = Dial(at)
	require.ErrorContains(t, err, "no token")
	_, err = Dial(at + "#" + strings.Repeat("0", 2*tokenLen))
	require.ErrorIs(t, err, errToken)
	require.Eventually(t, func() bool { return strings.Contains(log.String(), "refused 127.0.0.1:") }, time.Minute, time.Millisecond)
	t.Setenv(EnvToken, strings.TrimPrefix(l.Addr(), at+"#"))
	s, err = Dial(at)
	require.NoError(t, err)
	require.NoError(t, s.Close())
	require.Equal(t, 2, strings.Count(log.String(), "serves 127.0.0.1:"))
}

// A listener that does not know the token is not taken for ours.
func TestWrongListener(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		_ = admit(c, newToken())
	}()
	_, err = Dial(l.Addr().String() + "#" + strings.Repeat("1", 2*tokenLen))
	require.ErrorIs(t, err, errToken)
}

// Silent connections take no process, and do not keep others out.
func TestSilentCallers(t *testing.T) {
	l, log := serve(t)
	at := WithoutToken(l.Addr())
	var silent []net.Conn
	for range 4 * mostCallers {
		c, err := net.Dial("tcp", at)
		require.NoError(t, err)
		silent = append(silent, c)
	}
	s, err := Dial(l.Addr())
	require.NoError(t, err)
	require.NoError(t, s.Close())
	require.Equal(t, 1, strings.Count(log.String(), "serves"))
	for _, c := range silent {
		require.NoError(t, c.SetReadDeadline(time.Now().Add(time.Minute)))
		_, err := io.Copy(io.Discard, c)
		require.NotErrorIs(t, err, os.ErrDeadlineExceeded, "it is ended")
		require.NoError(t, c.Close())
	}
}

// A port alone is one of this host, and an address of others has a warning.
func TestAddress(t *testing.T) {
	for addr, open := range map[string]bool{":0": false, "127.0.0.1:0": false, "[::1]:0": false, "localhost:0": false, "0.0.0.0:0": true} {
		l, err := Listen(addr, io.Discard)
		require.NoError(t, err, addr)
		require.Equal(t, open, l.Open() != "", addr)
		require.NoError(t, l.Close())
	}
	_, err := Listen("18515", io.Discard)
	require.ErrorContains(t, err, "write HOST:PORT")
}

// Nothing that names a file is taken from another host: for each option that is a path, also without a folder.
func TestFromAfar(t *testing.T) {
	paths := 0
	for _, p := range option.Defaults() {
		o, _ := option.Lookup(p.Name)
		if o.Type != "path" {
			continue
		}
		paths++
		for _, value := range []string{"/tmp/x", "x", "../x"} {
			require.ErrorContains(t, FromAfar("GORAIL", map[string]string{p.Name: value}, nil), p.Name)
		}
		require.NoError(t, FromAfar("GORAIL", map[string]string{p.Name: p.Value}, nil))
	}
	require.GreaterOrEqual(t, paths, 13)
	require.NoError(t, FromAfar("GORAIL", map[string]string{"provider": "tcp", "data_sources": "10.0.0.0/8", "local_dir": "off"}, nil))
	require.NoError(t, FromAfar("UCX", map[string]string{"num_workers": "4"}, nil))
	require.Error(t, FromAfar("UCX", map[string]string{"config": "/tmp/evil"}, nil))
	require.Error(t, FromAfar("../../tmp/evil", nil, nil))
	require.Error(t, FromAfar("GORAIL", nil, map[string]string{"LD_PRELOAD": "x"}))
}

// A huge answer ends the connection, and takes no memory.
func TestHugeAnswer(t *testing.T) {
	here, there := net.Pipe()
	defer here.Close()
	go func() {
		defer there.Close()
		block := make([]byte, 1<<20)
		for range 2 * mostAnswer >> 20 {
			if _, err := there.Write(block); err != nil {
				return
			}
		}
	}()
	n, err := io.Copy(io.Discard, &bounded{Conn: here})
	require.ErrorContains(t, err, "64 MiB")
	require.LessOrEqual(t, n, int64(mostAnswer))
}
