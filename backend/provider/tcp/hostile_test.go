package tcp

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"gorail/backend/option"
	"gorail/backend/provider"
	"gorail/backend/provider/tcp/sock"
	"gorail/backend/trust"
	"gorail/test/drive"
	"gorail/test/tcpmodel"
)

var salt = [16]byte{5, 6, 7}

func linkOf(k trust.Ticket) *trust.LinkSecret {
	return (&trust.Secret{7}).Link(trust.LinkName{Fabric: provider.TCP, Ticket: k})
}

func security(initiator bool) provider.Security {
	return provider.Security{Initiator: initiator, Link: linkOf, Keys: salt}
}

// openTuned opens the loopback interface. tune may be nil.
func openTuned(t testing.TB, tune func(fd int)) *rail {
	t.Helper()
	return openLo(t, Options{tune: tune})
}

func openLo(t testing.TB, o Options) *rail {
	t.Helper()
	p := New(o)
	list, err := p.Discover(context.Background(), provider.Filter{Devices: []string{"lo"}})
	require.NoError(t, err)
	r, err := p.Open(list[0])
	require.NoError(t, err)
	return r.(*rail)
}

// node is a rail with memory, and what its operations ended with.
type node struct {
	t    testing.TB
	rail *rail
	d    drive.Rail
	mem  []byte // between two pages that no one may touch
	done map[uint64]drive.Comp
	next uint64 // id of an operation
}

const (
	page    = 4096
	nodeMem = 256 << 10
)

func newNode(t testing.TB, size int, tune func(fd int)) *node {
	return newNodeOf(t, size, Options{tune: tune})
}

func newNodeOf(t testing.TB, size int, o Options) *node {
	n := &node{t: t, rail: openLo(t, o), done: map[uint64]drive.Comp{}}
	n.d = drive.New(n.rail.Core())
	all := drive.Alloc(size + 2*page)
	for _, guard := range [][]byte{all[:page], all[len(all)-page:]} {
		require.NoError(t, unix.Mprotect(guard, unix.PROT_NONE))
	}
	n.mem = all[page : len(all)-page]
	t.Cleanup(func() {
		require.NoError(t, n.rail.Close())
		require.NoError(t, syscall.Munmap(all)) // the C code must not look at it any more
	})
	return n
}

func (n *node) register(at, size int, peers option.Rights) provider.MR {
	n.t.Helper()
	m, err := n.rail.Register(drive.Addr(n.mem)+uint64(at), uint64(size), 0, peers)
	require.NoError(n.t, err)
	n.t.Cleanup(func() { require.NoError(n.t, m.Close()) })
	return m
}

func (n *node) poll() {
	comps, err := n.d.Poll(64)
	require.NoError(n.t, err)
	for _, c := range comps {
		_, twice := n.done[c.ID]
		require.False(n.t, twice, "%d completed twice", c.ID)
		n.done[c.ID] = c
	}
}

func (n *node) until(what string, ok func() bool) {
	n.t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); n.poll() {
		require.True(n.t, time.Now().Before(end), "%s: not within 20 s", what)
	}
}

// id returns the number of a new operation.
func (n *node) id() uint64 { n.next++; return n.next }

func keyOf(m provider.MR) uint64 { return m.Key(salt) }

// hostilePeer is a peer with valid secrets that sends what it likes over a connection of its own.
type hostilePeer struct {
	t   testing.TB
	v   *node
	ep  provider.Endpoint
	c   *net.TCPConn
	buf []byte
	end error // of the connection, as this peer sees it

	out, in *tcpmodel.Records // nil: it speaks in clear
	sealed  []byte            // received, and not open yet
}

// target opens an endpoint that waits for a connection.
func (n *node) target() *endpoint {
	n.t.Helper()
	ep, err := n.rail.OpenEndpoint()
	require.NoError(n.t, err)
	e := ep.(*endpoint)
	e.Secure(security(false))
	peer := address{At: netip.MustParseAddrPort("127.0.0.1:9"), Encrypted: n.rail.opt.Encryption, Unpacks: n.rail.opt.Compression != sock.NeverPack}
	require.NoError(n.t, e.Connect(peer.Encode()))
	return e
}

// dialAt connects to a listener from an address of this host.
func dialAt(t testing.TB, to address, from string) *net.TCPConn {
	t.Helper()
	c, err := dialFrom(to, from)
	require.NoError(t, err)
	return c
}

func dialFrom(to address, from string) (*net.TCPConn, error) {
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: 10 * time.Second}
	c, err := d.Dial("tcp", to.At.String())
	if err != nil {
		return nil, err
	}
	return c.(*net.TCPConn), nil
}

// meet makes a connection whose opening is right.
func (n *node) meet(t testing.TB) *hostilePeer {
	t.Helper()
	e := n.target()
	to, ok := decodeAddress(e.Addr())
	require.True(t, ok)
	s := &hostilePeer{t: t, v: n, ep: e}
	for try := 0; ; try++ { // on a starved host the opening may come too late
		s.c = dialAt(t, to, "127.0.0.1")
		opening, text := newOpening(to.Ticket, linkOf(to.Ticket), to.Encrypted), make([]byte, answerLen)
		_, err := s.c.Write(opening)
		if err == nil {
			_, err = io.ReadFull(s.c, text)
		}
		if err == nil {
			require.NoError(t, checkAnswer(opening, text, linkOf(to.Ticket)))
			if to.Encrypted {
				secret := linkOf(to.Ticket).Records(trust.ConnNonce(opening[32:48]), trust.ConnNonce(text[:16]), 0)
				s.out, s.in = &tcpmodel.Records{Secret: secret, Direction: trust.ToTarget}, &tcpmodel.Records{Secret: secret, Direction: trust.ToInitiator}
			}
			return s
		}
		_ = s.c.Close()
		require.Less(t, try, 10, "%v", err)
	}
}

func (s *hostilePeer) close() {
	_ = s.c.Close()
	require.NoError(s.t, s.ep.Close())
	s.v.poll()
}

// send sends frames as they are. The victim may have ended the connection.
func (s *hostilePeer) send(frames ...tcpmodel.Frame) {
	s.t.Helper()
	var b []byte
	for _, f := range frames {
		b = append(b, f.Encode()...)
	}
	s.raw(b)
}

// raw sends bytes as they are, or in records of at most 16 KiB.
func (s *hostilePeer) raw(b []byte) {
	s.t.Helper()
	if s.out == nil {
		s.wire(b)
		return
	}
	for text := range slices.Chunk(b, tcpmodel.RecordWhole) {
		s.wire(s.out.Seal(text, false))
	}
}

// wire sends bytes, whatever they are.
func (s *hostilePeer) wire(b []byte) {
	s.t.Helper()
	for len(b) > 0 && s.end == nil {
		_ = s.c.SetWriteDeadline(time.Now().Add(time.Millisecond))
		n, err := s.c.Write(b)
		b = b[n:]
		if err != nil && !errors.Is(err, context.DeadlineExceeded) && !isTimeout(err) {
			s.end = err
		}
		s.v.poll()
	}
}

func isTimeout(err error) bool {
	var e net.Error
	return errors.As(err, &e) && e.Timeout()
}

// look receives what is there.
func (s *hostilePeer) look() {
	s.v.poll()
	chunk := make([]byte, 64<<10)
	_ = s.c.SetReadDeadline(time.Now().Add(200 * time.Microsecond))
	n, err := s.c.Read(chunk)
	if s.in == nil {
		s.buf = append(s.buf, chunk[:n]...)
	} else {
		s.open(chunk[:n])
	}
	if err != nil && !isTimeout(err) {
		s.end = err
	}
}

// open takes bytes of records.
func (s *hostilePeer) open(b []byte) {
	s.sealed = append(s.sealed, b...)
	for {
		text, rest, err := s.in.Open(s.sealed)
		require.NoError(s.t, err)
		if text == nil {
			return
		}
		s.buf, s.sealed = append(s.buf, text...), rest
	}
}

// frame returns the victim's next frame. nil: the connection has ended.
func (s *hostilePeer) frame() (f *tcpmodel.Frame) {
	s.t.Helper()
	s.v.until("a frame of the victim", func() bool {
		s.look()
		f = s.parse()
		return f != nil || s.end != nil
	})
	return f
}

func (s *hostilePeer) parse() *tcpmodel.Frame {
	if len(s.buf) < tcpmodel.HeaderLen {
		return nil
	}
	h, ok := tcpmodel.DecodeHeader(s.buf)
	require.True(s.t, ok, "%x", s.buf[:tcpmodel.HeaderLen])
	f, n := &tcpmodel.Frame{Header: h}, tcpmodel.HeaderLen+int(h.Segments)*tcpmodel.SegmentLen
	if len(s.buf) < n+int(h.Len) {
		return nil
	}
	for i := range int(h.Segments) {
		f.Segs = append(f.Segs, tcpmodel.DecodeSegment(s.buf[tcpmodel.HeaderLen+i*tcpmodel.SegmentLen:]))
	}
	f.Body = bytes.Clone(s.buf[n : n+int(h.Len)])
	s.buf = s.buf[n+int(h.Len):]
	return f
}

// want receives a frame of this kind.
func (s *hostilePeer) want(op tcpmodel.Op) tcpmodel.Frame {
	s.t.Helper()
	f := s.frame()
	require.NotNil(s.t, f, "the connection ended: %v", s.end)
	require.Equal(s.t, op, f.Op, "%+v", f.Header)
	return *f
}

// ended waits for the end of the connection. Frames that come before it do not count.
func (s *hostilePeer) ended() {
	s.t.Helper()
	s.v.until("the end of the connection", func() bool {
		if s.end == nil {
			s.look()
		}
		return s.end != nil
	})
	require.True(s.t, errors.Is(s.end, io.EOF) || errors.Is(s.end, syscall.ECONNRESET) || errors.Is(s.end, syscall.EPIPE), "%v", s.end)
}
