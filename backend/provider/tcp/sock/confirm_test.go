package sock_test

import (
	"bytes"
	"encoding/binary"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"gorail/backend/gpu"
	"gorail/backend/option"
	"gorail/backend/provider/tcp/sock"
	"gorail/test/tcpmodel"
)

const (
	confirm  = tcpmodel.Op(8)
	forWrite = 2
	bigLen   = 5 << 32 // of a region of a GPU: longer than a segment's first length field
)

// ask is a frame CONFIRM. The upper half of a length is behind the segment's other fields.
func ask(flags uint8, id uint32, segs ...tcpmodel.Segment) []byte {
	return tcpmodel.New(tcpmodel.Header{Op: confirm, Flags: flags, ID: id}, nil, segs...).Encode()
}

// long sets the upper half of the length of a frame's first segment.
func long(frame []byte, upper uint32) []byte {
	frame = bytes.Clone(frame)
	binary.LittleEndian.PutUint32(frame[tcpmodel.HeaderLen+20:], upper)
	return frame
}

// TestConfirm: what a peer may ask about memory of our GPUs, and what ends its connection. No answer but 0 lets it copy; there is no driver here, so
// that memory which passes the checks is ESTALE.
func TestConfirm(t *testing.T) {
	const big = 3 // the region's number; 4: PeersRead
	vram := func(region int, offset uint64, n uint32) tcpmodel.Segment {
		return tcpmodel.Segment{Key: keyOf(region), Addr: tcpmodel.At(uint32(region), offset), Len: n}
	}
	wrong := vram(big, 0, 1)
	wrong.Key++
	free := tcpmodel.Segment{Key: keyOf(9), Addr: tcpmodel.At(9, 0), Len: 1}
	many := make([]tcpmodel.Segment, 9)
	for i := range many {
		many[i] = vram(big, 0, 1)
	}
	body := tcpmodel.New(tcpmodel.Header{Op: confirm, ID: 7}, []byte{1}, vram(big, 0, 1)).Encode()
	var flood, twoAsks []byte
	for i := range uint32(65) {
		flood = append(flood, ask(0, i, vram(big, 0, 1))...)
	}
	twoAsks = append(ask(0, 7, wrong), ask(0, 7)...)
	for name, c := range map[string]struct {
		frame  []byte
		plain  bool // a rail without NVLink
		status []syscall.Errno
	}{
		"a rail of sockets":           {frame: ask(0, 7, vram(0, 0, 1)), plain: true},
		"nothing":                     {frame: ask(0, 7), status: []syscall.Errno{0}},
		"all":                         {frame: long(ask(0, 7, vram(big, 0, 0)), 5), status: []syscall.Errno{syscall.ESTALE}},
		"one byte behind the end":     {frame: long(ask(0, 7, vram(big, 0, 1)), 5), status: []syscall.Errno{syscall.EFAULT}},
		"from behind the end":         {frame: ask(0, 7, vram(big, bigLen+1, 0)), status: []syscall.Errno{syscall.EFAULT}},
		"more than there are":         {frame: long(ask(0, 7, vram(big, 1, 0xffffffff)), 0xffffffff), status: []syscall.Errno{syscall.EFAULT}},
		"another key":                 {frame: ask(0, 7, wrong), status: []syscall.Errno{syscall.ESTALE}},
		"no region":                   {frame: ask(0, 7, free), status: []syscall.Errno{syscall.ESTALE}},
		"no right":                    {frame: ask(forWrite, 7, vram(4, 0, 1)), status: []syscall.Errno{syscall.EACCES}},
		"memory of the host":          {frame: ask(0, 7, vram(0, 0, 1)), status: []syscall.Errno{syscall.ESTALE}},
		"the second is wrong":         {frame: ask(0, 7, vram(4, bigLen+1, 1), vram(0, 0, 1)), status: []syscall.Errno{syscall.EFAULT}},
		"two with one number":         {frame: twoAsks, status: []syscall.Errno{syscall.ESTALE, 0}},
		"nine ranges":                 {frame: ask(0, 7, many...)},
		"a body":                      {frame: body},
		"more at once than are taken": {frame: flood},
		"a READ of GPU memory":        {frame: tcpmodel.New(tcpmodel.Header{Op: tcpmodel.Read, ID: 7}, nil, vram(big, 0, 1)).Encode(), status: []syscall.Errno{syscall.EACCES}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, false)
			if !c.plain {
				b.nvlink(big)
			}
			conn, peer := b.pair(false)
			defer b.finish(conn, peer)
			_, err := peer.Write(c.frame)
			require.NoError(t, err)
			var out []byte
			require.Equal(t, c.status == nil, b.drain(peer, &out, c.status == nil), "the connection ends")
			for _, status := range c.status {
				h, ok := tcpmodel.DecodeHeader(out)
				require.True(t, ok)
				require.Equal(t, tcpmodel.Header{Op: tcpmodel.Answer, ID: 7, Status: uint32(status)}, h)
				out = out[tcpmodel.HeaderLen:]
			}
			require.Empty(t, out)
		})
	}
}

// nvlink makes the rail one of NVLink, with regions of a GPU from a number on.
func (b *bench) nvlink(from int) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	require.NoError(b.t, err)
	bell := os.NewFile(uintptr(fd), "eventfd")
	require.NoError(b.t, b.rail.Bulk(fd, 0))
	for i, peers := range []option.Rights{option.PeersBoth, option.PeersRead} {
		desc, err := sock.NewVRAM(&gpu.Mem{})
		require.NoError(b.t, err)
		n, err := b.rail.RegisterVRAM(1<<40, bigLen, uint64(100+from+i), peers, desc)
		require.NoError(b.t, err)
		require.EqualValues(b.t, from+i, n)
		b.t.Cleanup(func() {
			require.NoError(b.t, b.rail.Deregister(n))
			b.rail.RetireVRAM(desc)
		})
	}
	b.t.Cleanup(func() { _ = bell.Close() })
}
