package wire

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestConnRoundTrip(t *testing.T) {
	want := sampleConn()
	data, err := want.Encode()
	require.NoError(t, err)
	got, err := DecodeConn(data)
	require.NoError(t, err)
	assert.Empty(t, cmp.Diff(want, got, cmpopts.IgnoreUnexported(ConnBlob{}, RailOffer{}), cmpopts.EquateEmpty()))

	small, err := ConnBlob{}.Encode()
	require.NoError(t, err)
	assert.Greater(t, len(small), 25, "NIXL's own test flips byte 100 of the metadata, which must fall into the blob")
}

// TestEveryBitCounts flips each bit of both blobs, cuts the blobs at every length, and appends bytes to them.
func TestEveryBitCounts(t *testing.T) {
	conn, err := sampleConn().Encode()
	require.NoError(t, err)
	region, err := sampleRegion().Encode()
	require.NoError(t, err)
	decoders := map[string]func([]byte) error{
		string(conn):   func(b []byte) error { _, err := DecodeConn(b); return err },
		string(region): func(b []byte) error { _, err := DecodeRegion(b); return err },
	}
	for data, decode := range decoders {
		require.NoError(t, decode([]byte(data)))
		for bit := range 8 * len(data) {
			bad := []byte(data)
			bad[bit/8] ^= 1 << (bit % 8)
			require.ErrorIs(t, decode(bad), ErrCorrupt, "bit %d", bit)
		}
		for n := range len(data) {
			require.Error(t, decode([]byte(data[:n])))
		}
		require.ErrorIs(t, decode([]byte(data+"x")), ErrCorrupt)
	}
}

// resum builds a blob with a chosen body and version, and the right checksum.
func resum(head string, body []byte) []byte {
	out := append([]byte(head), body...)
	return binary.BigEndian.AppendUint32(out, crc32.Checksum(out, castagnoli))
}

func TestBlobErrors(t *testing.T) {
	data, err := sampleRegion().Encode()
	require.NoError(t, err)
	body := data[headLen : len(data)-sumLen]
	_, err = DecodeRegion(resum("GRM\x10", body))
	assert.ErrorIs(t, err, ErrVersion)
	assert.ErrorContains(t, err, "16, here 15")
	assert.ErrorContains(t, err, "same GORAIL on both sides")
	_, err = DecodeRegion(resum("GRC\x0f", body))
	assert.ErrorIs(t, err, ErrKind)
	_, err = DecodeConn(resum("GRM\x0f", body))
	assert.ErrorIs(t, err, ErrKind)
	_, err = DecodeRegion(resum("GRM\x0f", append(body, 0)))
	assert.ErrorIs(t, err, ErrFormat, "extra bytes")
	_, err = DecodeRegion(resum("GRM\x0f", []byte("\x87\x0f\x50................\x18\x05\x05\x00\x00\x50................")))
	assert.ErrorIs(t, err, ErrFormat, "a number in its long form")
	_, err = DecodeRegion(resum("GRM\x0f", []byte("\x87\x0f\x50................\x05\xf6\x00\x00\x50................")))
	assert.ErrorIs(t, err, ErrFormat, "null for a number")
	_, err = DecodeRegion(resum("GRM\x0f", []byte("\x87\x0f\x4f...............\x05\x05\x00\x00\x50................")))
	assert.ErrorIs(t, err, ErrFormat, "a short engine id")
	_, err = DecodeRegion(resum("GRM\x0f", []byte("\x87\x0f\x50................\x05\x05\x00\x00\x50................")))
	assert.NoError(t, err)
	_, err = DecodeRegion(append([]byte("GRM"), make([]byte, MaxBlob)...))
	assert.ErrorIs(t, err, ErrLimit)
}

// A blob of an engine with the option tls=off, of an earlier version, is refused by name.
func TestBlobWithoutTLS(t *testing.T) {
	blob := sampleConn()
	data, err := blob.Encode()
	require.NoError(t, err)
	body := data[headLen : len(data)-sumLen]
	at := bytes.Index(body, append(blob.Pin[:], 0xf5)) + len(blob.Pin) // true
	body[at] = 0xf4
	_, err = DecodeConn(resum("GRC\x0f", body))
	assert.ErrorIs(t, err, ErrFormat)
	assert.ErrorContains(t, err, "tls=off")
}

// TestForeign: another backend's blob of any length is reported as ErrForeign; a damaged blob of ours is not.
func TestForeign(t *testing.T) {
	for _, blob := range []string{"{}", "127.0.0.1:4711", "\x00\x01\xfe\x7f", strings.Repeat("u", MaxBlob+1)} {
		_, err := DecodeConn([]byte(blob))
		assert.ErrorIs(t, err, ErrForeign, "%.20q", blob)
		_, err = DecodeRegion([]byte(blob))
		assert.ErrorIs(t, err, ErrForeign, "%.20q", blob)
	}
	for _, blob := range []string{"", "G", "u", "GR"} {
		_, err := DecodeConn([]byte(blob))
		assert.ErrorIs(t, err, ErrFormat, "%q", blob)
	}
}

func TestEncodeRefusesWhatDecodeWould(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*ConnBlob)
		want   error
	}{
		"name":      {func(b *ConnBlob) { b.Agent = strings.Repeat("x", MaxName+1) }, ErrLimit},
		"boot":      {func(b *ConnBlob) { b.Boot = strings.Repeat("x", MaxText+1) }, ErrLimit},
		"addresses": {func(b *ConnBlob) { b.Control = make([]string, MaxControl+1) }, ErrLimit},
		"address":   {func(b *ConnBlob) { b.Control = []string{"localhost:1"} }, ErrFormat},
		"rails":     {func(b *ConnBlob) { b.Rails = make([]RailOffer, MaxRails+1) }, ErrLimit},
		"slice":     {func(b *ConnBlob) { b.Slice = MinSlice - SliceUnit }, ErrFormat},
		"page":      {func(b *ConnBlob) { b.Slice = MinSlice + 1 }, ErrFormat},
		"twins":     {func(b *ConnBlob) { b.Rails = make([]RailOffer, 2) }, ErrFormat},
		"rail":      {func(b *ConnBlob) { b.Rails[0].Name = strings.Repeat("x", MaxText+1) }, ErrLimit},
		"all": {func(b *ConnBlob) {
			b.Rails = nil
			for i := range MaxRails {
				b.Rails = append(b.Rails, RailOffer{Index: uint8(i), Name: strings.Repeat("x", MaxText)})
			}
		}, ErrLimit},
	} {
		t.Run(name, func(t *testing.T) {
			b := sampleConn()
			tt.change(&b)
			_, err := b.Encode()
			assert.ErrorIs(t, err, tt.want)
		})
	}
	_, err := RegionBlob{Addr: 2, Len: ^uint64(0)}.Encode()
	assert.ErrorIs(t, err, ErrFormat)
}

// TestRegionAsCBOR: the code without reflection writes what package cbor writes, and reads nothing else.
func TestRegionAsCBOR(t *testing.T) {
	edges := []uint64{0, 23, 24, 255, 256, 1<<16 - 1, 1 << 16, 1<<32 - 1, 1 << 32, 1<<64 - 1}
	for i, v := range edges {
		for _, mem := range []int32{0, -1, -24, -25, 1<<31 - 1, -1 << 31} {
			b := RegionBlob{Version: Version, Engine: EngineID{byte(i)}, Addr: v, Dev: edges[len(edges)-1-i], Mem: mem, Cap: Cap{9, 15: byte(i)}}
			b.Len = min(^v, edges[(i+3)%len(edges)])
			want, err := seal(kindRegion, &b, b.check)
			require.NoError(t, err)
			got, err := b.Encode()
			require.NoError(t, err)
			require.Equal(t, want, got)
			back, ok := readRegion(got)
			require.True(t, ok)
			require.Equal(t, b, back)
		}
	}
	for name, body := range map[string]string{
		"a long form":      "\x87\x0f\x50................\x18\x05\x05\x00\x00\x50................",
		"a reserved form":  "\x87\x0f\x50................\x1c\x05\x05\x00\x00\x50................",
		"null":             "\x87\x0f\x50................\x05\xf6\x00\x00\x50................",
		"a negative":       "\x87\x0f\x50................\x05\x25\x00\x00\x50................",
		"a large type":     "\x87\x0f\x50................\x05\x05\x00\x1a\x80\x00\x00\x00\x50................",
		"a large negative": "\x87\x0f\x50................\x05\x05\x00\x3a\x80\x00\x00\x00\x50................",
		"bytes behind":     "\x87\x0f\x50................\x05\x05\x00\x00\x50................0",
		"cut":              "\x87\x0f\x50................\x05\x05\x00\x00\x50...............",
		"other version":    "\x87\x10\x50................\x05\x05\x00\x00\x50................",
	} {
		data := resum("GRM\x0f", []byte(body))
		_, ok := readRegion(data)
		require.False(t, ok, name)
		_, err := DecodeRegion(data)
		require.Error(t, err, name)
	}
	_, ok := readRegion(resum("GRM\x0f", []byte("\x87\x0f\x50................\x05\x05\x00\x00\x50................")))
	require.True(t, ok, "the same without a fault")
}

func TestTokenIsNotPrinted(t *testing.T) {
	b := sampleConn()
	for _, format := range []string{"%v", "%+v", "%#v", "%s"} {
		assert.NotContains(t, fmt.Sprintf(format, b), "9 8 0", format)
		assert.NotContains(t, fmt.Sprintf(format, b), "0x9, 0x8", format)
	}
	assert.Equal(t, "01020300000000000000000000000000", b.Engine.String())
}

func FuzzDecodeConn(f *testing.F) {
	data, _ := sampleConn().Encode()
	f.Add(data[headLen : len(data)-sumLen])
	data, _ = ConnBlob{}.Encode()
	f.Add(data[headLen : len(data)-sumLen])
	f.Fuzz(func(t *testing.T, body []byte) {
		_, _ = DecodeConn(body)
		data := resum("GRC\x0f", body)
		b, err := DecodeConn(data)
		if err != nil {
			return
		}
		again, err := b.Encode()
		require.NoError(t, err)
		require.Equal(t, data, again)
	})
}

func FuzzDecodeRegion(f *testing.F) {
	data, _ := sampleRegion().Encode()
	f.Add(data[headLen : len(data)-sumLen])
	f.Fuzz(func(t *testing.T, body []byte) {
		_, _ = DecodeRegion(body)
		data := resum("GRM\x0f", body)
		b, err := DecodeRegion(data)
		var plain RegionBlob
		as := open(kindRegion, data, &plain, plain.check)
		if err != nil {
			require.Error(t, as)
			return
		}
		require.NoError(t, as)
		require.Equal(t, plain, b)
		again, err := b.Encode()
		require.NoError(t, err)
		require.Equal(t, data, again)
	})
}
