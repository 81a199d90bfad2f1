package wire

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func message(h Header, payload string) []byte {
	msg := make([]byte, HeaderSize)
	h.Put(msg)
	return append(msg, payload...)
}

// TestHeaderBytes pins the layout that the C core shares.
func TestHeaderBytes(t *testing.T) {
	h := Header{Kind: KindNotif, Subs: 0x0102, Sub: 0x0003, Seq: 0x1112131415161718, Total: 0x21222324, Offset: 0x31323334, Count: 0x41424344, To: 0x5152535455565758}
	assert.Equal(t, []byte{
		0x47, 0x52, 4, 1, 0x02, 0x01, 0x03, 0x00,
		0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11,
		0x24, 0x23, 0x22, 0x21, 0x34, 0x33, 0x32, 0x31,
		0x44, 0x43, 0x42, 0x41, 0, 0, 0, 0,
		0x58, 0x57, 0x56, 0x55, 0x54, 0x53, 0x52, 0x51,
	}, message(h, ""))
	assert.Equal(t, "GR", string(message(h, "")[:2]))
}

func TestBadMessages(t *testing.T) {
	notif, credit := Header{Kind: KindNotif, Subs: 1}, Header{Kind: KindCredit, Count: 1}
	with := func(h Header, payload string, change func(*Header)) []byte { change(&h); return message(h, payload) }
	same := func(*Header) {}
	poke := func(at int, v byte) []byte { m := message(notif, ""); m[at] = v; return m }
	_, _, err := ParseMessage(message(credit, ""))
	require.NoError(t, err)
	for name, tt := range map[string]struct {
		msg  []byte
		want error
	}{
		"empty":         {nil, ErrFormat},
		"short":         {message(notif, "")[:HeaderSize-1], ErrFormat},
		"magic":         {poke(OffMagic, 0), ErrKind},
		"version":       {poke(OffVersion, 2), ErrVersion},
		"kind 0":        {poke(OffKind, 0), ErrKind},
		"kind 5":        {poke(OffKind, 5), ErrKind},
		"probe":         {poke(OffKind, 4), ErrFormat},
		"skip body":     {with(Header{Kind: KindSkip, Subs: 1}, "x", same), ErrFormat},
		"reserved":      {poke(OffSum+3, 1), ErrFormat},
		"no subs":       {with(notif, "", func(h *Header) { h.Subs = 0 }), ErrFormat},
		"sub":           {with(notif, "", func(h *Header) { h.Sub = 1 }), ErrFormat},
		"above total":   {message(notif, "x"), ErrFormat},
		"wraps":         {with(notif, "xx", func(h *Header) { h.Total, h.Offset = 1<<32-1, 1<<32-2 }), ErrFormat},
		"credit body":   {with(credit, "x", same), ErrFormat},
		"credit subs":   {with(credit, "", func(h *Header) { h.Subs = 1 }), ErrFormat},
		"credit total":  {with(credit, "", func(h *Header) { h.Total = 1 }), ErrFormat},
		"credit offset": {with(credit, "", func(h *Header) { h.Offset = 1 }), ErrFormat},
	} {
		t.Run(name, func(t *testing.T) {
			h, payload, err := ParseMessage(tt.msg)
			assert.ErrorIs(t, err, tt.want)
			assert.Zero(t, h)
			assert.Nil(t, payload)
		})
	}
}

func FuzzParseMessage(f *testing.F) {
	f.Add(message(Header{Kind: KindNotif, Subs: 2, Sub: 1, Seq: 5, Total: 10, Offset: 3}, "hello"))
	f.Add(message(Header{Kind: KindCredit, Count: 64}, ""))
	f.Add(message(Header{Kind: KindSkip, Subs: 1, Seq: 7}, ""))
	f.Fuzz(func(t *testing.T, msg []byte) {
		h, payload, err := ParseMessage(msg)
		if err == nil {
			require.Equal(t, msg, message(h, string(payload)))
		}
	})
}
