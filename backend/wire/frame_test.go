package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestFramesRoundTrip(t *testing.T) {
	var stream bytes.Buffer
	for i, f := range sampleFrames() {
		assert.EqualValues(t, i+1, f.Type(), "the samples have every type")
		assert.NotContains(t, f.Type().String(), "type(")
		require.NoError(t, WriteFrame(&stream, f))
	}
	r := iotest.OneByteReader(&stream)
	for _, want := range sampleFrames() {
		got, err := ReadFrame(r, 0)
		require.NoError(t, err)
		assert.Equal(t, want, got)
	}
	_, err := ReadFrame(r, 0)
	assert.Equal(t, io.EOF, err)
	assert.Len(t, sampleFrames(), len(typeNames)-1)
	assert.Equal(t, "type(99)", FrameType(99).String())
}

func TestTruncated(t *testing.T) {
	for _, f := range sampleFrames() {
		data, err := AppendFrame(nil, f)
		require.NoError(t, err)
		for n := 1; n < len(data); n++ {
			_, err := ReadFrame(bytes.NewReader(data[:n]), 0)
			require.ErrorIs(t, err, io.ErrUnexpectedEOF)
		}
	}
	broken := errors.New("reset")
	_, err := ReadFrame(io.MultiReader(bytes.NewReader([]byte{0, 0, 0, 9, byte(TypePing)}), iotest.ErrReader(broken)), 0)
	assert.ErrorIs(t, err, broken)
}

func frame(t FrameType, length uint32, body []byte) io.Reader {
	return bytes.NewReader(append(append(binary.BigEndian.AppendUint32(nil, length), byte(t)), body...))
}

func TestBadFrames(t *testing.T) {
	for name, tt := range map[string]struct {
		in   io.Reader
		want error
	}{
		"type 0":       {frame(0, 0, nil), ErrKind},
		"type unknown": {frame(TypePackedCopied+1, 0, nil), ErrKind},
		"too long":     {frame(TypePing, MaxBody+1, nil), ErrLimit},
		"huge":         {frame(TypePing, math.MaxUint32, nil), ErrLimit},
		"empty":        {frame(TypePing, 0, nil), ErrFormat},
		"not cbor":     {frame(TypePing, 1, []byte{0xff}), ErrFormat},
		"null":         {frame(TypePing, 1, []byte{0xf6}), ErrFormat},
		"field short":  {frame(TypeKeys, 2, []byte{0x81, 0x01}), ErrFormat},
		"field long":   {frame(TypePing, 4, []byte{0x83, 0x01, 0x01, 0x01}), ErrFormat},
		"map":          {frame(TypePing, 1, []byte{0xa0}), ErrFormat},
		"no count":     {frame(TypePing, 2, []byte{0x81, 0x01}), ErrFormat}, // as in version 1
		"tag":          {frame(TypePing, 4, []byte{0xc1, 0x82, 0x01, 0x01}), ErrFormat},
		"indefinite":   {frame(TypePing, 4, []byte{0x9f, 0x01, 0x01, 0xff}), ErrFormat},
		"negative":     {frame(TypePing, 3, []byte{0x82, 0x01, 0x20}), ErrFormat},
		"float":        {frame(TypePing, 5, []byte{0x82, 0x01, 0xf9, 0x3c, 0x00}), ErrFormat},
		"long form":    {frame(TypePing, 4, []byte{0x82, 0x01, 0x18, 0x01}), ErrFormat},
		"huge array":   {frame(TypePing, 9, []byte{0x9b, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}), ErrFormat},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ReadFrame(tt.in, 0)
			assert.ErrorIs(t, err, tt.want)
		})
	}
	_, err := ReadFrame(frame(TypePing, 100, make([]byte, 100)), 99)
	assert.ErrorIs(t, err, ErrLimit)
}

func TestFrameLimits(t *testing.T) {
	for name, f := range map[string]Frame{
		"offers":       &Hello{Offers: make([]EndpointOffer, MaxRails+1)},
		"address":      &Hello{Offers: []EndpointOffer{{Addr: make([]byte, MaxAddr+1)}}},
		"hello name":   &Hello{Agent: strings.Repeat("x", MaxName+1)},
		"welcome name": &Welcome{Agent: strings.Repeat("x", MaxName+1)},
		"reject":       &Reject{Text: strings.Repeat("x", MaxText+1)},
		"ranges":       &KeysReq{Ranges: make([]Claim, MaxRanges+1)},
		"entries":      &Keys{Entries: make([]KeyEntry, MaxRanges+1)},
		"key rails":    &Keys{Entries: []KeyEntry{{Known: true, Rails: []RailKey{{Rail: MaxKeyRails}}}}},
		"revoke":       &Revoke{Regions: make([]uint64, MaxRevoke+1)},
		"fence":        &Fence{Addr: make([]byte, MaxAddr+1)},
		"fenced":       &Fenced{Addr: make([]byte, MaxAddr+1)},
		"fenced have":  &Fenced{Have: make([]uint64, MaxHave+1)},
		"wider":        &Wider{Rails: make([]Rail, MaxRails+1)},
		"moved":        &Moved{Control: make([]string, MaxControl+1)},
	} {
		_, err := AppendFrame(nil, f)
		assert.ErrorIs(t, err, ErrLimit, name)
	}
	_, err := AppendFrame(nil, &KeysReq{Ranges: []Claim{{Range: Range{Addr: 2, Len: math.MaxUint64}}}})
	assert.ErrorIs(t, err, ErrFormat)
	_, err = AppendFrame(nil, &Moved{Control: []string{"localhost:1"}})
	assert.ErrorIs(t, err, ErrFormat)
	_, err = AppendFrame(nil, &Keys{Entries: []KeyEntry{{Gen: 1}}})
	assert.ErrorIs(t, err, ErrFormat)
	_, err = AppendFrame(nil, &Keys{Entries: []KeyEntry{{Known: true, Rails: make([]RailKey, 2)}}})
	assert.ErrorIs(t, err, ErrFormat, "the same rail twice")
}

func TestNumbered(t *testing.T) {
	numbered := map[FrameType]bool{TypeKeysReq: true, TypeKeys: true, TypeRevoke: true, TypeRevoked: true, TypeFence: true, TypeFenced: true,
		TypeRingReq: true, TypeRing: true, TypeCopy: true, TypeCopied: true, TypeDrain: true, TypeDrained: true,
		TypeSnapshotReq: true, TypeSnapshot: true, TypeMoved: true, TypeWider: true, TypeHandlesReq: true, TypeHandles: true,
		TypePackedCopy: true, TypePackedCopied: true}
	for _, f := range sampleFrames() {
		switch f.Type() {
		case TypeChallenge, TypeOpen, TypeHello, TypeWelcome, TypeReject, TypeResume, TypeResumed: // frames of the handshake do not count
		default:
			assert.Equal(t, numbered[f.Type()], Numbered(f), f.Type())
		}
	}
}

// TestStageLimits: the decoder bounds the numbers that a peer offers or asks for in staging.
func TestStageLimits(t *testing.T) {
	for name, f := range map[string]Frame{
		"slots of a byte":        &Ring{Range: Claim{Range: Range{Len: MaxRing}}, Slot: 1},
		"half a slot":            &Ring{Range: Claim{Range: Range{Len: 3 << 20}}, Slot: 2 << 20},
		"no slots":               &Ring{Range: Claim{Range: Range{Len: 1 << 20}}},
		"past the end":           &Ring{Range: Claim{Range: Range{Addr: math.MaxUint64 - 1, Len: 1 << 20}}, Slot: 1 << 20},
		"no such memory":         &RingReq{Mem: 2},
		"no such GPU":            &RingReq{Mem: 1, For: Claim{Range: Range{Dev: 1 << 32}}},
		"numbers not ascending":  &Welcome{Have: []uint16{2, 2}},
		"the next one itself":    &Welcome{Have: []uint16{0}},
		"a piece of no region":   &Copy{Pieces: CopyPieces{{Len: 1}}},
		"a piece past the end":   &Copy{Regions: Claims{{}}, Pieces: CopyPieces{{Addr: math.MaxUint64, Len: 2}}},
		"a piece above the most": &Copy{Regions: Claims{{}}, Pieces: CopyPieces{{Len: MaxRing + 1}}},
		"nothing to unpack":      &PackedCopy{},
		"packed where it goes":   &PackedCopy{Copy: Copy{Out: true}, Packed: 1},
		"piece of a packed copy": &PackedCopy{Copy: Copy{Pieces: CopyPieces{{Len: 1}}}, Packed: 1},
		"packed above the most":  &PackedCopied{Packed: MaxRing/2 + 1},
		"packed, and an error":   &PackedCopied{Packed: 1, Copied: Copied{Text: "why"}},
	} {
		_, err := AppendFrame(nil, f)
		assert.ErrorIs(t, err, ErrFormat, name)
	}
	_, err := AppendFrame(nil, &Copy{Regions: Claims{{}}, Pieces: make(CopyPieces, MaxPieces+1)})
	assert.ErrorIs(t, err, ErrLimit)
}

// TestLargestFrames: a frame at the limits, with the longest numbers, fits MaxBody.
func TestLargestFrames(t *testing.T) {
	const m = math.MaxUint64
	req, keys, revoke := &KeysReq{ID: m}, &Keys{ID: m}, &Revoke{ID: m}
	for i := range uint64(MaxRanges) { // differences with the longest encoding
		req.Ranges = append(req.Ranges, Claim{Range{Addr: i % 2 << 63, Len: 1<<63 - 1 - i%2, Dev: m - i%2, Mem: math.MinInt32}, Cap{byte(i)}})
		e := KeyEntry{Known: true, Region: i % 2 << 63, Gen: math.MaxUint32}
		for k := range uint64(MaxKeyRails) {
			e.Rails = append(e.Rails, RailKey{Rail: uint8(k), Key: (i%2)<<63 - k*i, Base: (i%2)<<63 + k*i})
		}
		keys.Entries = append(keys.Entries, e)
	}
	for range MaxRevoke {
		revoke.Regions = append(revoke.Regions, m)
	}
	identity := Identity{Algorithm: math.MaxUint16, Signature: make([]byte, MaxCert), Secret: make([]byte, len(Mac{}))}
	for range MaxChain {
		identity.Chain = append(identity.Chain, make([]byte, MaxCert))
	}
	hello := &Hello{Session: m, Agent: strings.Repeat("x", MaxName), Identity: identity}
	for range MaxRails {
		hello.Offers = append(hello.Offers, EndpointOffer{Rail: 255, Own: 255, ID: m, Addr: make([]byte, MaxAddr)})
	}
	welcome := &Welcome{Session: m, Agent: hello.Agent, NextSeq: m, Offers: hello.Offers, Identity: identity}
	for i := range MaxHave {
		welcome.Have = append(welcome.Have, uint16(math.MaxUint16-MaxHave+1+i))
	}
	snapshot := &Snapshot{ID: m, State: SnapshotServing, Uptime: maxAgo, Late: maxAgo, Heard: maxAgo, Sessions: math.MaxUint32, Transfers: math.MaxUint32, NextSeq: m,
		Waiting: math.MaxUint32, Rings: math.MaxUint32, Copies: math.MaxUint32}
	for i := range MaxRails {
		snapshot.Links = append(snapshot.Links, LinkView{Number: uint8(i), State: LinkStopped, Ops: math.MaxUint32, Bytes: m, Queued: math.MaxUint32, Credits: math.MaxUint32,
			Received: m, Completions: m, Errors: m, Progress: maxAgo})
	}
	for _, f := range []Frame{req, keys, revoke, hello, welcome, snapshot} {
		data, err := AppendFrame(nil, f)
		require.NoError(t, err)
		most := 0
		if f == hello || f == welcome {
			most = HandshakeLimit
		}
		if f == snapshot {
			require.Less(t, len(data), 6<<10)
		}
		got, err := ReadFrame(bytes.NewReader(data), most)
		require.NoError(t, err)
		require.True(t, reflect.DeepEqual(f, got), "%v", f.Type())
	}
}

// TestClaimCostsNothing: a header that claims a megabyte does not make the reader allocate a megabyte.
func TestClaimCostsNothing(t *testing.T) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range 100 {
		_, err := ReadFrame(frame(TypeHello, MaxBody, []byte("x")), 0)
		require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	}
	runtime.ReadMemStats(&after)
	assert.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(1<<20))
}

func FuzzReadFrame(f *testing.F) {
	for _, s := range sampleFrames() {
		data, err := AppendFrame(nil, s)
		require.NoError(f, err)
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		r := bytes.NewReader(in)
		for {
			before := r.Len()
			got, err := ReadFrame(r, 0)
			if err != nil {
				return
			}
			again, err := AppendFrame(nil, got)
			require.NoError(t, err)
			at := len(in) - before
			require.Equal(t, in[at:at+before-r.Len()], again, "one encoding for each value, and no byte too many read")
		}
	})
}
