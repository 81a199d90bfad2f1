package trust

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/binary"
	"fmt"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"gorail/backend/limits"
)

// nameScheme is the scheme of a URI that certifies an agent's name.
const nameScheme = "gorail:"

// Peer is what a peer has proved. The zero Peer has proved no certificate.
type Peer struct {
	Names   []string  // its certificate's URIs, then its DNS names, as written there
	Subject string    // of its certificate, which names one without names
	Until   time.Time // when its certificate expires; zero: it has none
}

// ID identifies the peer by the names of its certificate, and by the subject of one without names. It stays the same when
// the certificate is renewed, by any CA. The zero ID: no certificate. A secret proves membership only, and gives no ID.
func (p Peer) ID() (id limits.ID) {
	if p.Until.IsZero() {
		return id
	}
	h := sha256.New()
	names := slices.Sorted(slices.Values(p.Names))
	if len(names) == 0 {
		names = []string{"", p.Subject} // no name is empty
	}
	for _, n := range names {
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(n))))
		h.Write([]byte(n))
	}
	h.Sum(id[:0])
	return id
}

// namesOf returns the names of a certificate. A DNS name that looks like a URI is none: a CA that takes care of URIs may
// take no care of it.
func namesOf(c *x509.Certificate) (names []string) {
	for _, u := range c.URIs {
		names = append(names, u.String())
	}
	for _, d := range c.DNSNames {
		if d != "" && !strings.ContainsAny(d, ":/") {
			names = append(names, d)
		}
	}
	return names
}

// Named reports whether the certificate is for an agent of this name: it has the URI gorail:NAME (percent-encoded where
// a URI demands it), or exactly this DNS name.
func (p Peer) Named(agent string) bool {
	return agent != "" && slices.ContainsFunc(p.Names, func(name string) bool {
		if rest, ok := strings.CutPrefix(name, nameScheme); ok {
			plain, err := url.PathUnescape(rest)
			return err == nil && plain == agent
		}
		return name == agent && !strings.Contains(name, ":")
	})
}

// String returns the names for logs and errors.
func (p Peer) String() string {
	if len(p.Names) == 0 && p.Subject != "" {
		return quoted([]string{p.Subject})
	}
	return quoted(p.Names)
}

// matches compares names with the patterns of tls_peers, as package path: * and ? stand for anything but '/', so each
// part of a SPIFFE ID needs its own *, and * takes any number of a DNS name's parts. Letters' case counts.
func matches(patterns, names []string) bool {
	return slices.ContainsFunc(names, func(name string) bool {
		return slices.ContainsFunc(patterns, func(pattern string) bool {
			ok, err := path.Match(pattern, name)
			return ok && err == nil
		})
	})
}

// Bounds of what a peer's certificate adds to an error: a Reject must have room for it.
const (
	shownNames = 3
	shownBytes = 120
)

// quoted lists names that somebody else chose.
func quoted(names []string) string {
	var out []string
	for i, n := range names {
		if i == shownNames {
			out = append(out, fmt.Sprintf("and %d more", len(names)-i))
			break
		}
		out = append(out, fmt.Sprintf("%q", clip(n, shownBytes)))
	}
	if len(out) == 0 {
		return "(no names)"
	}
	return strings.Join(out, ", ")
}

// clip shortens a text, whole characters only.
func clip(s string, most int) string {
	if len(s) <= most {
		return s
	}
	for most > 0 && !utf8.RuneStart(s[most]) {
		most--
	}
	return s[:most] + "..."
}

// title names a certificate in errors: by its names, else by its subject.
func title(c *x509.Certificate) string {
	if names := namesOf(c); len(names) > 0 {
		return quoted(names)
	}
	return quoted([]string{c.Subject.String()})
}
