// Package access says what peers may do with registered memory.
package access

import (
	"errors"
	"fmt"
	"strings"
)

// Rights is the set of operations that peers may use on a registration. Operations of this process need no right.
type Rights uint8

// The rights.
const (
	Read  Rights = 1 << iota // peers may READ
	Write                    // peers may WRITE
	Both  = Read | Write
)

// Option is the option of an engine, and the word of a registration's metaInfo, that sets rights.
const Option = "remote_access"

// ErrWord means that a word names no rights.
var ErrWord = errors.New("want `read`, `write` or `both`")

var words = map[Rights]string{0: "none", Read: "read", Write: "write", Both: "both"}

// String returns the word that Parse reads.
func (r Rights) String() string { return words[r&Both] }

// Allow reports whether r has all rights of need.
func (r Rights) Allow(need Rights) bool { return r&need == need }

// Parse returns the rights that a word names: "read", "write" or "both", in any case. It returns ErrWord for others.
func Parse(word string) (Rights, error) {
	word = strings.ToLower(strings.TrimSpace(word))
	for _, r := range []Rights{Read, Write, Both} {
		if word == words[r] {
			return r, nil
		}
	}
	return 0, ErrWord
}

// OfMeta returns the rights that the metaInfo of a registration names, as the word "remote_access=read" for example; def if
// it names none. Words end at spaces, commas and semicolons. Other words are not ours. The error wraps ErrWord: a misspelt
// word must not give peers more than was meant.
func OfMeta(meta []byte, def Rights) (Rights, error) {
	if len(meta) == 0 {
		return def, nil
	}
	for _, word := range strings.FieldsFunc(string(meta), func(c rune) bool { return strings.ContainsRune(" \t\r\n\x00,;", c) }) {
		value, ours := strings.CutPrefix(word, Option+"=")
		if !ours {
			continue
		}
		r, err := Parse(value)
		if err != nil {
			return 0, fmt.Errorf("%s=%q in metaInfo: %w", Option, value, err)
		}
		def = r
	}
	return def, nil
}
