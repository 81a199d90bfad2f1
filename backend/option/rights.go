package option

import (
	"errors"
	"fmt"
	"strings"
)

// Rights is the set of operations that peers may use on a registration. Operations of this process need no right.
type Rights uint8

// The rights.
const (
	PeersRead  Rights = 1 << iota // peers may READ
	PeersWrite                    // peers may WRITE
	PeersBoth  = PeersRead | PeersWrite
)

// RemoteAccess is the option of an engine, and the word of a registration's metaInfo, that sets rights.
const RemoteAccess = "remote_access"

// ErrRights means that a word names no rights.
var ErrRights = errors.New("want `read`, `write` or `both`")

var rightsWords = map[Rights]string{0: "none", PeersRead: "read", PeersWrite: "write", PeersBoth: "both"}

// String returns the word that ParseRights reads.
func (r Rights) String() string { return rightsWords[r&PeersBoth] }

// Allow reports whether r has all rights of need.
func (r Rights) Allow(need Rights) bool { return r&need == need }

// ParseRights returns the rights that a word names: "read", "write" or "both", in any case. It returns ErrRights for others.
func ParseRights(word string) (Rights, error) {
	word = strings.ToLower(strings.TrimSpace(word))
	for _, r := range []Rights{PeersRead, PeersWrite, PeersBoth} {
		if word == rightsWords[r] {
			return r, nil
		}
	}
	return 0, ErrRights
}

// RightsOfMeta returns the rights that the metaInfo of a registration names, as the word "remote_access=read" for example; def if
// it names none. Words end at spaces, commas and semicolons. Other words are not ours. The error wraps ErrRights: a misspelt
// word must not give peers more than was meant.
func RightsOfMeta(meta []byte, def Rights) (Rights, error) {
	if len(meta) == 0 {
		return def, nil
	}
	for _, word := range strings.FieldsFunc(string(meta), func(c rune) bool { return strings.ContainsRune(" \t\r\n\x00,;", c) }) {
		value, ours := strings.CutPrefix(word, RemoteAccess+"=")
		if !ours {
			continue
		}
		r, err := ParseRights(value)
		if err != nil {
			return 0, fmt.Errorf("%s=%q in metaInfo: %w", RemoteAccess, value, err)
		}
		def = r
	}
	return def, nil
}
