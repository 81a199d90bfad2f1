package wire

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
)

// Mac proves that its sender has the target's token.
type Mac [32]byte

// Equal compares in constant time.
func (m Mac) Equal(other Mac) bool { return hmac.Equal(m[:], other[:]) }

// MacHello returns the MAC of a Hello: HMAC-SHA256 with the target's token, over the challenge and the whole Hello
// with a zero Mac. The MAC covers the nonces, both engines, the name, the session and the offers, so it is valid for
// one connection only.
func MacHello(token Token, challenge Nonce, h *Hello) (Mac, error) {
	plain := *h
	plain.Mac = Mac{}
	return macOver(token, "gorail hello 1", challenge, Nonce{}, &plain)
}

// MacWelcome returns the MAC of a Welcome, over both nonces and the whole Welcome with a zero Mac.
func MacWelcome(token Token, challenge, hello Nonce, w *Welcome) (Mac, error) {
	plain := *w
	plain.Mac = Mac{}
	return macOver(token, "gorail welcome 1", challenge, hello, &plain)
}

// MacResume returns the MAC of a Resume, computed as in MacHello.
func MacResume(token Token, challenge Nonce, r *Resume) (Mac, error) {
	plain := *r
	plain.Mac = Mac{}
	return macOver(token, "gorail resume 1", challenge, Nonce{}, &plain)
}

// MacResumed returns the MAC of a Resumed, computed as in MacWelcome.
func MacResumed(token Token, challenge, resume Nonce, r *Resumed) (Mac, error) {
	plain := *r
	plain.Mac = Mac{}
	return macOver(token, "gorail resumed 1", challenge, resume, &plain)
}

// MacReject returns the MAC of a Reject, computed as in MacWelcome, with the nonce of the answered Hello or Resume.
func MacReject(token Token, challenge, asked Nonce, r *Reject) (Mac, error) {
	plain := *r
	plain.Mac = Mac{}
	return macOver(token, "gorail reject 1", challenge, asked, &plain)
}

// macOver computes a MAC over fields of fixed or stated lengths. It returns the error of encoding the frame.
func macOver(token Token, label string, a, b Nonce, f Frame) (Mac, error) {
	body, err := marshal(f)
	if err != nil {
		return Mac{}, err
	}
	h := hmac.New(sha256.New, token[:])
	var n [8]byte
	binary.BigEndian.PutUint64(n[:], uint64(len(label)))
	h.Write(n[:])
	h.Write([]byte(label))
	h.Write(a[:])
	h.Write(b[:])
	h.Write(body)
	return Mac(h.Sum(nil)), nil
}
