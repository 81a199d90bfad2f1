//go:build linux

package topo

import (
	"bytes"
	"encoding/binary"
	"errors"
	"syscall"

	"golang.org/x/sys/unix"
)

// errMessage: the kernel's message ends too early or in the wrong place. The messages before it are valid.
var errMessage = errors.New("malformed netlink message")

// linkMessage holds the used fields of one NETLINK_ROUTE message.
type linkMessage struct {
	kind        messageKind
	seq         uint32 // the request that the message answers; 0: none
	index       int
	name        string // links only; "": not in the message
	up          bool
	interrupted bool  // the dump of this message has missed changes
	err         error // only for kind failure
}

type messageKind int

const (
	linkIs     messageKind = iota // a link exists, with this state
	linkGone                      // a link is gone
	addrChange                    // an address of a link was added or removed
	dumpDone                      // end of a dump
	failure                       // the answer to a request: err, or nil for success
)

// Sizes of struct nlmsghdr, ifinfomsg, ifaddrmsg and rtattr.
const (
	sizeHeader = 16
	sizeIfInfo = 16
	sizeIfAddr = 8
	sizeAttr   = 4
)

// parseMessages parses the data of one receive. It copies the fields that it keeps. It skips other messages, among them
// a bridge's DELLINKs about its ports: these links stay.
func parseMessages(b []byte) (out []linkMessage, err error) {
	for len(b) >= sizeHeader {
		length := int(binary.NativeEndian.Uint32(b))
		if length < sizeHeader || length > len(b) {
			return out, errMessage
		}
		m, ok, err := parseMessage(b[:length])
		if err != nil {
			return out, err
		}
		if ok {
			out = append(out, m)
		}
		b = b[min(align(length), len(b)):]
	}
	if len(b) > 0 {
		return out, errMessage
	}
	return out, nil
}

func parseMessage(b []byte) (m linkMessage, ok bool, err error) {
	kind, flags := binary.NativeEndian.Uint16(b[4:]), binary.NativeEndian.Uint16(b[6:])
	m = linkMessage{seq: binary.NativeEndian.Uint32(b[8:]), interrupted: flags&unix.NLM_F_DUMP_INTR != 0}
	body := b[sizeHeader:]
	switch kind {
	case unix.NLMSG_DONE:
		m.kind = dumpDone
	case unix.NLMSG_ERROR:
		if len(body) < 4 {
			return m, false, errMessage
		}
		m.kind = failure
		if code := int32(binary.NativeEndian.Uint32(body)); code != 0 {
			m.err = syscall.Errno(-code)
		}
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		if len(body) < sizeIfAddr {
			return m, false, errMessage
		}
		m.kind, m.index = addrChange, int(binary.NativeEndian.Uint32(body[4:]))
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		if len(body) < sizeIfInfo {
			return m, false, errMessage
		}
		if body[0] != unix.AF_UNSPEC {
			return m, false, nil
		}
		m.kind, m.index = linkIs, int(int32(binary.NativeEndian.Uint32(body[4:])))
		if kind == unix.RTM_DELLINK {
			m.kind = linkGone
		}
		state := byte(0) // unknown
		for name, value := range attrs(body[sizeIfInfo:], &err) {
			switch {
			case name == unix.IFLA_IFNAME:
				value, _, _ = bytes.Cut(value, []byte{0})
				m.name = string(value)
			case name == unix.IFLA_OPERSTATE && len(value) == 1:
				state = value[0]
			}
		}
		const both, unknown, up = unix.IFF_UP | unix.IFF_LOWER_UP, 0, 6 // RFC 2863's operational states
		m.up = binary.NativeEndian.Uint32(body[8:])&both == both && (state == unknown || state == up)
	default:
		return m, false, nil
	}
	return m, err == nil, err
}

// attrs iterates over attributes. It sets *err at a malformed attribute.
func attrs(b []byte, err *error) func(func(uint16, []byte) bool) {
	return func(yield func(uint16, []byte) bool) {
		for len(b) >= sizeAttr {
			length := int(binary.NativeEndian.Uint16(b))
			if length < sizeAttr || length > len(b) {
				*err = errMessage
				return
			}
			const flags = unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER
			if !yield(binary.NativeEndian.Uint16(b[2:])&^uint16(flags), b[sizeAttr:length]) {
				return
			}
			b = b[min(align(length), len(b)):]
		}
	}
}

func align(n int) int { return (n + 3) &^ 3 }

// dumpRequest is a request for all links.
func dumpRequest(seq uint32) []byte {
	b := make([]byte, sizeHeader+sizeIfInfo)
	binary.NativeEndian.PutUint32(b, uint32(len(b)))
	binary.NativeEndian.PutUint16(b[4:], unix.RTM_GETLINK)
	binary.NativeEndian.PutUint16(b[6:], unix.NLM_F_REQUEST|unix.NLM_F_DUMP)
	binary.NativeEndian.PutUint32(b[8:], seq)
	return b
}
