//go:build linux

package topo

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// message builds a netlink message. attrs alternates attribute types and values.
func message(kind, flags uint16, seq uint32, body []byte, attrs ...any) []byte {
	for i := 0; i < len(attrs); i += 2 {
		value := attrs[i+1].([]byte)
		body = binary.NativeEndian.AppendUint16(body, uint16(sizeAttr+len(value)))
		body = binary.NativeEndian.AppendUint16(body, uint16(attrs[i].(int)))
		body = append(body, value...)
		body = append(body, make([]byte, align(len(body))-len(body))...)
	}
	b := binary.NativeEndian.AppendUint32(nil, uint32(sizeHeader+len(body)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = binary.NativeEndian.AppendUint16(b, flags)
	b = binary.NativeEndian.AppendUint32(b, seq)
	return append(append(b, 0, 0, 0, 0), body...)
}

func ifInfo(family byte, index int, flags uint32) []byte {
	b := make([]byte, sizeIfInfo)
	b[0] = family
	binary.NativeEndian.PutUint32(b[4:], uint32(index))
	binary.NativeEndian.PutUint32(b[8:], flags)
	return b
}

func newLink(seq uint32, index int, name string, flags uint32, state byte) []byte {
	return message(unix.RTM_NEWLINK, unix.NLM_F_MULTI, seq, ifInfo(0, index, flags),
		unix.IFLA_IFNAME, append([]byte(name), 0), unix.IFLA_OPERSTATE, []byte{state})
}

func addrOf(index int) []byte {
	return message(unix.RTM_NEWADDR, 0, 0, append(make([]byte, 4), binary.NativeEndian.AppendUint32(nil, uint32(index))...))
}

const bothUp = unix.IFF_UP | unix.IFF_LOWER_UP

func TestParseMessages(t *testing.T) {
	errno := func(code int32) []byte { return binary.NativeEndian.AppendUint32(nil, uint32(-code)) }
	for name, c := range map[string]struct {
		in   []byte
		want []linkMessage
		bad  bool
	}{
		"nothing":       {},
		"up":            {in: newLink(0, 3, "eth0", bothUp, 6), want: []linkMessage{{kind: linkIs, index: 3, name: "eth0", up: true}}},
		"unknown state": {in: newLink(0, 1, "lo", bothUp, 0), want: []linkMessage{{kind: linkIs, index: 1, name: "lo", up: true}}},
		"no carrier":    {in: newLink(0, 3, "eth0", unix.IFF_UP, 2), want: []linkMessage{{kind: linkIs, index: 3, name: "eth0"}}},
		"set down":      {in: newLink(0, 3, "eth0", unix.IFF_LOWER_UP, 2), want: []linkMessage{{kind: linkIs, index: 3, name: "eth0"}}},
		"dormant":       {in: newLink(0, 3, "eth0", bothUp, 5), want: []linkMessage{{kind: linkIs, index: 3, name: "eth0"}}},
		"gone": {in: message(unix.RTM_DELLINK, 0, 0, ifInfo(0, 7, 0), unix.IFLA_IFNAME, []byte("x")),
			want: []linkMessage{{kind: linkGone, index: 7, name: "x"}}},
		"a port leaves its bridge": {in: message(unix.RTM_DELLINK, 0, 0, ifInfo(unix.AF_BRIDGE, 7, 0))},
		"address":                  {in: addrOf(4), want: []linkMessage{{kind: addrChange, index: 4}}},
		"another topic":            {in: message(unix.RTM_NEWROUTE, 0, 0, nil)},
		"done": {in: message(unix.NLMSG_DONE, unix.NLM_F_DUMP_INTR, 9, make([]byte, 4)),
			want: []linkMessage{{kind: dumpDone, seq: 9, interrupted: true}}},
		"refused": {in: message(unix.NLMSG_ERROR, 0, 9, errno(int32(unix.EPERM))), want: []linkMessage{{kind: failure, seq: 9, err: unix.EPERM}}},
		"agreed":  {in: message(unix.NLMSG_ERROR, 0, 9, errno(0)), want: []linkMessage{{kind: failure, seq: 9}}},
		"two, one cut": {in: append(newLink(0, 3, "e", bothUp, 6), newLink(0, 4, "f", bothUp, 6)[:30]...),
			want: []linkMessage{{kind: linkIs, index: 3, name: "e", up: true}}, bad: true},
		"no body":          {in: message(unix.RTM_NEWLINK, 0, 0, make([]byte, 12)), bad: true},
		"no address":       {in: message(unix.RTM_DELADDR, 0, 0, make([]byte, 4)), bad: true},
		"no error":         {in: message(unix.NLMSG_ERROR, 0, 0, nil), bad: true},
		"a short header":   {in: make([]byte, 15), bad: true},
		"length zero":      {in: make([]byte, 16), bad: true},
		"attribute length": {in: message(unix.RTM_NEWLINK, 0, 0, append(ifInfo(0, 3, 0), 3, 0, 3, 0)), bad: true},
	} {
		got, err := parseMessages(c.in)
		require.Equal(t, c.want, got, name)
		require.Equal(t, c.bad, err != nil, name)
	}
}

func TestLinkTable(t *testing.T) {
	table := newLinkTable()
	feed := func(b ...[]byte) (events []Event, again bool) {
		for _, one := range b {
			messages, err := parseMessages(one)
			require.NoError(t, err)
			for _, m := range messages {
				e, a := table.take(m)
				events, again = append(events, e...), again || a
			}
		}
		return events, again
	}
	expect := func(again bool, b [][]byte, want ...Event) {
		t.Helper()
		events, more := feed(b...)
		require.Equal(t, want, events)
		require.Equal(t, again, more)
	}
	done := func(seq uint32) []byte { return message(unix.NLMSG_DONE, 0, seq, make([]byte, 4)) }
	lo, eth, ib := Event{Name: "lo", Index: 1, Up: true}, Event{Name: "eth0", Index: 2, Up: true}, Event{Name: "ib0", Index: 3}

	seq, ok := table.ask()
	require.True(t, ok)
	expect(false, [][]byte{newLink(seq, 1, "lo", bothUp, 0), newLink(seq, 2, "eth0", bothUp, 6), newLink(seq, 3, "ib0", 0, 2), done(seq)}, lo, eth, ib)
	expect(false, [][]byte{newLink(0, 2, "eth0", bothUp, 6), done(seq), done(77)})
	down := eth
	down.Up = false
	expect(false, [][]byte{newLink(0, 2, "eth0", unix.IFF_UP, 2)}, down)
	addrs := down
	addrs.Addrs = true
	expect(false, [][]byte{addrOf(2), addrOf(99)}, addrs)
	expect(false, [][]byte{message(unix.RTM_NEWLINK, 0, 0, ifInfo(0, 2, bothUp)), message(unix.RTM_NEWLINK, 0, 0, ifInfo(0, 50, bothUp))}, eth)

	// An overrun: ib0 went and wlan0 came without messages. A second overrun meanwhile asks once more.
	seq, ok = table.ask()
	require.True(t, ok)
	_, ok = table.ask()
	require.False(t, ok, "one question at a time")
	wlan, gone := Event{Name: "wlan0", Index: 4}, Event{Name: "ib0", Index: 3, Gone: true}
	expect(true, [][]byte{newLink(seq, 1, "lo", bothUp, 0), newLink(seq, 4, "wlan0", 0, 2), done(seq)}, wlan)
	seq, _ = table.ask()
	tun := Event{Name: "tun0", Index: 5, Up: true} // comes while the answer arrives
	expect(false, [][]byte{newLink(seq, 1, "lo", bothUp, 0), newLink(seq, 2, "eth0", bothUp, 6), newLink(0, 5, "tun0", bothUp, 0),
		newLink(seq, 4, "wlan0", 0, 2), done(seq)}, tun, gone)

	// An incomplete answer, then a refusal.
	seq, _ = table.ask()
	expect(true, [][]byte{message(unix.NLMSG_DONE, unix.NLM_F_DUMP_INTR, seq, make([]byte, 4))})
	seq, _ = table.ask()
	expect(true, [][]byte{message(unix.NLMSG_ERROR, 0, seq, []byte{0xf0, 0xff, 0xff, 0xff})})
	require.Len(t, table.known, 4)

	renamed := Event{Name: "wan", Index: 2, Up: true}
	eth.Up, eth.Gone = false, true
	expect(false, [][]byte{newLink(0, 2, "wan", bothUp, 6)}, eth, renamed)
	renamed.Up, renamed.Gone = false, true
	del := message(unix.RTM_DELLINK, 0, 0, ifInfo(0, 2, 0))
	expect(false, [][]byte{del, del}, renamed)
}

// FuzzLinkMessage: no input makes the parser or the table fail, and a reported link is complete.
func FuzzLinkMessage(f *testing.F) {
	f.Add(newLink(1, 3, "eth0", bothUp, 6))
	f.Add(append(newLink(1, 3, "eth0", 0, 2), message(unix.NLMSG_DONE, 0, 1, make([]byte, 4))...))
	f.Add(append(message(unix.RTM_DELLINK, 0, 0, ifInfo(0, 3, 0)), addrOf(3)...))
	f.Add(message(unix.NLMSG_ERROR, 0, 1, []byte{0xff, 0xff, 0xff, 0xff}))
	f.Fuzz(func(t *testing.T, b []byte) {
		messages, err := parseMessages(b)
		if err != nil {
			require.ErrorIs(t, err, errMessage)
		}
		require.LessOrEqual(t, len(messages), len(b)/sizeHeader)
		table := newLinkTable()
		table.ask()
		for _, m := range messages {
			events, again := table.take(m)
			for _, e := range events {
				require.NotEmpty(t, e.Name)
				require.Positive(t, e.Index)
				require.False(t, e.Up && e.Gone)
			}
			if again {
				_, ok := table.ask()
				require.True(t, ok)
			}
		}
	})
}
