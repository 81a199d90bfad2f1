package tcp

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/option"
	"gorail/backend/provider"
	"gorail/internal/pattern"
	"gorail/test/drive"
	"gorail/test/tcpmodel"
)

// tap stands between two rails, and keeps all bytes.
type tap struct {
	l  *net.TCPListener
	wg sync.WaitGroup

	mu   sync.Mutex
	text []byte
}

func newTap(t *testing.T, to string) *tap {
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	require.NoError(t, err)
	p := &tap{l: l}
	copyAll := func(to, from *net.TCPConn) {
		defer func() { _ = to.CloseWrite() }()
		_, _ = io.Copy(io.MultiWriter(to, p), from)
	}
	p.wg.Go(func() {
		for {
			c, err := l.AcceptTCP()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", to)
			if err != nil {
				_ = c.Close()
				continue
			}
			p.wg.Go(func() { copyAll(out.(*net.TCPConn), c) })
			p.wg.Go(func() { copyAll(c, out.(*net.TCPConn)) })
		}
	})
	return p
}

func (p *tap) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.text = append(p.text, b...)
	return len(b), nil
}

func (p *tap) has(b []byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return bytes.Contains(p.text, b)
}

// TestNothingInClear: WRITE, READ and message of each size, in both directions, and the wire between has none of their bytes, no key
// and no header of a frame. Without encryption it has them all.
func TestNothingInClear(t *testing.T) {
	t.Parallel()
	for _, encrypted := range []bool{false, true} {
		t.Run(fmt.Sprint(encrypted), func(t *testing.T) {
			t.Parallel()
			a, b := newNodeOf(t, 4<<20, Options{Encryption: encrypted}), newNodeOf(t, 4<<20, Options{Encryption: encrypted})
			eps := [2]*endpoint{}
			for i, n := range []*node{a, b} {
				e, err := n.rail.OpenEndpoint()
				require.NoError(t, err)
				eps[i] = e.(*endpoint)
				eps[i].Secure(security(i == 0))
			}
			p := newTap(t, b.rail.at.Load().listener.Addr().String())
			to := addrOf(t, eps[1])
			to.At = p.l.Addr().(*net.TCPAddr).AddrPort()
			require.NoError(t, eps[0].Connect(to.Encode()))
			require.NoError(t, eps[1].Connect(eps[0].Addr()))
			marks := p.traffic(t, [2]*node{a, b}, eps)
			for _, e := range eps {
				require.NoError(t, e.Close())
			}
			require.NoError(t, p.l.Close())
			p.wg.Wait()
			for name, mark := range marks {
				require.Equal(t, !encrypted, p.has(mark), name)
			}
		})
	}
}

// traffic moves bytes, and returns what a wire in clear has.
func (p *tap) traffic(t *testing.T, n [2]*node, eps [2]*endpoint) map[string][]byte {
	marks := map[string][]byte{}
	mark := func(name string, b []byte) {
		text := fmt.Appendf(nil, "a secret of %s.", name)
		for at := b; len(at) >= len(text); at = at[len(text):] {
			copy(at, text)
		}
		marks[name] = text
	}
	for i, own := range n {
		other := n[1-i]
		mr := other.register(0, 4<<20, option.PeersBoth)
		marks[fmt.Sprint("key ", i)] = binary.LittleEndian.AppendUint64(nil, keyOf(mr))
		for _, size := range []int{100, 8000, 64 << 10, 1 << 20} {
			name := fmt.Sprintf("%d, %d bytes", i, size)
			own.post(t, other, func(id uint64) error {
				mark("WRITE of "+name, own.mem[:size])
				return own.d.RMA(eps[i].Core(), drive.Write, id, drive.Seg{Local: drive.Addr(own.mem), Remote: mr.Base() + 1<<20, Len: uint64(size), Key: keyOf(mr)})
			})
			pattern.Same(t, own.mem[:size], other.mem[1<<20:1<<20+size])
			own.post(t, other, func(id uint64) error {
				mark("READ of "+name, other.mem[2<<20:2<<20+size])
				return own.d.RMA(eps[i].Core(), drive.Read, id, drive.Seg{Local: drive.Addr(own.mem), Remote: mr.Base() + 2<<20, Len: uint64(size), Key: keyOf(mr)})
			})
			pattern.Same(t, own.mem[:size], other.mem[2<<20:2<<20+size])
		}
		own.post(t, other, func(id uint64) error {
			mark(fmt.Sprint("a message of ", i), own.mem[:500])
			require.NoError(t, other.d.Recv(eps[1-i].Core(), other.id(), other.mem[3<<20:3<<20+slot], nil))
			return own.d.Send(eps[i].Core(), id, own.mem[:500], nil)
		})
	}
	header := tcpmodel.Header{Op: tcpmodel.Send, Flags: tcpmodel.Ask, Len: 500}.Append(nil)
	marks["header"] = header[:8]
	return marks
}

// post posts an operation and waits for its success.
func (n *node) post(t *testing.T, other *node, post func(id uint64) error) {
	t.Helper()
	id := n.id()
	require.NoError(t, post(id))
	n.until("the end of an operation", func() bool { other.poll(); _, ok := n.done[id]; return ok })
	require.Zero(t, n.done[id].Err)
}

// forgery changes the records of a frame before they go out.
type forgery struct {
	name   string
	change func(records [][]byte) [][]byte
}

func flip(record, at int) func([][]byte) [][]byte {
	return func(r [][]byte) [][]byte {
		r[record][(at+len(r[record]))%len(r[record])] ^= 1
		return r
	}
}

var forgeries = []forgery{
	{"length of the frame's header", flip(0, 0)},
	{"frame's header", flip(0, tcpmodel.RecordHead)},
	{"tag of the frame's header", flip(0, -1)},
	{"length of the body's first record", flip(1, 0)},
	{"unused bits of a length", flip(1, 2)},
	{"more unused bits", flip(1, 3)},
	{"first byte of the body", flip(1, tcpmodel.RecordHead)},
	{"last byte of the body", flip(2, -tcpmodel.RecordTag-1)},
	{"tag of the body", flip(2, -1)},
	{"a record twice", func(r [][]byte) [][]byte { return [][]byte{r[0], r[1], r[1]} }},
	{"a record left out", func(r [][]byte) [][]byte { return [][]byte{r[0], r[2], r[2]} }},
	{"records exchanged", func(r [][]byte) [][]byte { return [][]byte{r[0], r[2], r[1]} }},
	{"the first record again", func(r [][]byte) [][]byte { return [][]byte{r[0], r[0], r[2]} }},
	{"an empty record", func(r [][]byte) [][]byte { return [][]byte{r[0], make([]byte, tcpmodel.RecordHead)} }},
	{"a record that is too long", func(r [][]byte) [][]byte {
		return [][]byte{binary.LittleEndian.AppendUint32(nil, tcpmodel.RecordWhole+1), make([]byte, 1<<20)}
	}},
	{"a body's record that is too long", func(r [][]byte) [][]byte {
		return [][]byte{r[0], binary.LittleEndian.AppendUint32(nil, tcpmodel.RecordBody+1), make([]byte, 1<<20)}
	}},
	{"a new key before its time", func(r [][]byte) [][]byte { r[1][3] |= 0x80; return r }},
}

// TestForgedRecords: each forgery ends the connection. Nothing is acknowledged or delivered, and bytes lie at most where a verified
// header has said.
func TestForgedRecords(t *testing.T) {
	t.Parallel()
	v := newRules(t, Options{Encryption: true})
	const size = 40_000
	for _, f := range forgeries {
		t.Run(f.name, func(t *testing.T) {
			v.t, v.honest.t = t, t
			before := bytes.Clone(v.mem)
			s := v.meet(t)
			defer s.close()
			receive := v.recv(s, 64)
			counted := v.rail.c.Counters()
			w := v.write(1, size)
			text := w.Encode()
			head := len(text) - size
			records := [][]byte{s.out.Seal(text[:head], false), s.out.Seal(text[head:head+size/2], false), s.out.Seal(text[head+size/2:], false),
				s.out.Seal(message(2, 8).Encode(), false)}
			untouched := bytes.HasSuffix([]byte(f.name), []byte("frame's header"))
			for _, r := range f.change(records) {
				s.wire(r)
			}
			s.ended()
			got := v.rail.c.Counters()
			counted.Forged++
			require.Equal(t, [2]uint64{counted.Broken, counted.Forged}, [2]uint64{got.Broken, got.Forged})
			require.NotZero(t, v.result(receive), "the message was delivered")
			for len(s.buf) > 0 {
				require.Zero(t, s.parse().Ack, "acknowledged")
			}
			if !untouched {
				copy(before[wholeAt:wholeAt+size], v.mem[wholeAt:wholeAt+size])
			}
			pattern.Same(t, before, v.mem, "memory that no verified header names")
			v.works()
		})
	}
}

// TestCutConnection: an end between two records is a failure if no goodbye came before it.
func TestCutConnection(t *testing.T) {
	t.Parallel()
	v := newRules(t, Options{Encryption: true})
	for name, bye := range map[string]bool{"cut": false, "goodbye": true} {
		s := v.meet(t)
		id := v.recv(s, 64)
		s.send(v.write(1, 100))
		require.Equal(t, uint64(1), s.want(tcpmodel.Ack).Ack)
		if bye {
			s.send(tcpmodel.New(tcpmodel.Header{Op: tcpmodel.Goodbye}, nil))
		}
		require.NoError(t, s.c.CloseWrite())
		if !bye {
			require.Equal(t, syscall.ECONNRESET, v.result(id), name)
		} else {
			v.until("the end", func() bool {
				return v.d.RMA(s.ep.Core(), drive.Write, v.id(), drive.Seg{}) == syscall.ENOTCONN
			})
		}
		s.close()
	}
}

// TestKeysChange: a victim changes its key after so many records or bytes, and follows the peer's changes. Package tcpmodel opens
// its records with the keys of package trust.
func TestKeysChange(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		records, bytes uint64
		least          uint32
	}{"records": {3, 1 << 40, 6}, "bytes": {1 << 22, 100 << 10, 9}, "each": {1, 1 << 40, 19}, "never": {1 << 22, 64 << 30, 0}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := newRules(t, Options{Encryption: true})
			v.rail.c.Tune(c.records, c.bytes, 1<<20)
			s := v.meet(t)
			defer s.close()
			for i := range 20 {
				text := v.write(uint64(i+1), 9000).Encode()
				s.wire(s.out.Seal(text[:100], i%3 == 1))
				s.wire(s.out.Seal(text[100:], i%2 == 1))
				s.send(v.read(uint32(i), v.whole, 0, 60_000))
				for got := 0; got < 1; {
					f := s.frame()
					require.NotNil(t, f, "the connection ended: %v", s.end)
					if f.Op == tcpmodel.Answer {
						got++
						require.Zero(t, f.Status)
						require.Equal(t, byte(0xee), f.Body[8999])
					}
				}
			}
			require.GreaterOrEqual(t, s.in.Generation(), c.least)
			if c.least == 0 {
				require.Zero(t, s.in.Generation())
			}
			require.Equal(t, uint32(17), s.out.Generation())
		})
	}
}

// TestEndsDiffer: an end that encrypts and one that does not never connect, and both say why.
func TestEndsDiffer(t *testing.T) {
	t.Parallel()
	n := [2]*node{newNode(t, nodeMem, nil), newNodeOf(t, nodeMem, Options{Encryption: true})}
	for i, own := range n { // the first is the initiator
		e, err := own.rail.OpenEndpoint()
		require.NoError(t, err)
		e.(provider.Listener).Secure(security(i == 0))
		err = e.Connect(addrOf(t, n[1-i].open(t)).Encode())
		require.ErrorIs(t, err, provider.ErrBadAddress)
		require.ErrorIs(t, err, errEncryption)
		require.ErrorContains(t, err, "the initiator has encryption=off, the target encryption=on")
		require.NoError(t, e.Close())
	}
}

// TestOpeningSaysOtherwise: a peer whose opening is in clear, with a right proof, gets no connection of a rail that encrypts.
func TestOpeningSaysOtherwise(t *testing.T) {
	t.Parallel()
	for _, encrypted := range []bool{false, true} {
		n := newNodeOf(t, nodeMem, Options{Encryption: encrypted})
		e := n.target()
		id := n.id()
		require.NoError(t, n.d.Recv(e.Core(), id, n.mem[:64], nil))
		to := addrOf(t, e)
		c := dialAt(t, to, "127.0.0.1")
		opening, text := newOpening(to.Ticket, linkOf(to.Ticket), !encrypted), make([]byte, answerLen)
		_, err := c.Write(opening)
		require.NoError(t, err)
		_, err = io.ReadFull(c, text)
		require.NoError(t, err)
		_, _ = c.Write(message(1, 8).Encode())
		n.until("the end of the endpoint", func() bool { _, ok := n.done[id]; return ok })
		require.Equal(t, syscall.EPROTO, n.done[id].Err)
		_ = c.Close()
		require.NoError(t, e.Close())
	}
}

func (n *node) open(t *testing.T) *endpoint {
	e, err := n.rail.OpenEndpoint()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, e.Close()) })
	return e.(*endpoint)
}

// TestNoLibcrypto: without the library, or with another one, there is no device, and the error says what to do.
func TestNoLibcrypto(t *testing.T) {
	t.Parallel()
	junk := filepath.Join(t.TempDir(), "junk.so")
	require.NoError(t, os.WriteFile(junk, []byte("no library"), 0o600))
	for path, says := range map[string]string{"/nowhere/libcrypto.so.3": "/nowhere/libcrypto.so.3", junk: "junk.so", "libm.so.6": "no OPENSSL_init_crypto"} {
		_, err := New(Options{Encryption: true, libcrypto: path}).Discover(context.Background(), provider.Filter{Devices: []string{"lo"}})
		require.ErrorIs(t, err, provider.ErrUnusable)
		require.ErrorIs(t, err, provider.ErrNoLibrary)
		for _, part := range []string{says, "encryption=on", "libssl3", "openssl-libs", "LD_LIBRARY_PATH"} {
			require.ErrorContains(t, err, part)
		}
		list, err := New(Options{libcrypto: path}).Discover(context.Background(), provider.Filter{Devices: []string{"lo"}})
		require.NoError(t, err, "without encryption nothing is loaded")
		require.False(t, list[0].Encrypts)
	}
	list, err := New(Options{Encryption: true}).Discover(context.Background(), provider.Filter{Devices: []string{"lo"}})
	require.NoError(t, err)
	require.True(t, list[0].Encrypts)
}

// TestPeerThatDoesNotReceive: of what it does not take one send stays here, sealed. Later the peer gets all of it.
func TestPeerThatDoesNotReceive(t *testing.T) {
	t.Parallel()
	n := newNodeOf(t, 4<<20, Options{Encryption: true, tune: small})
	s := n.meet(t)
	defer s.close()
	for i := range 3 {
		seg := drive.Seg{Local: drive.Addr(n.mem) + uint64(i)<<20, Remote: tcpmodel.At(3, 0), Len: 1 << 20, Key: 9}
		require.NoError(t, n.d.RMA(s.ep.Core(), drive.Write, n.id(), seg))
	}
	for last := uint64(0); ; { // until the socket is full
		for range 100 {
			n.poll()
		}
		sends := n.rail.c.Counters().Sends
		if sends == last {
			break
		}
		last = sends
	}
	require.Empty(t, n.done)
	clear(n.mem[:1<<20]) // the first frame's bytes are sealed
	for i := range 3 {
		f := s.want(tcpmodel.Write)
		require.Len(t, f.Body, 1<<20)
		require.Equal(t, uint64(i+1), f.Seq)
	}
}
