package wire

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
)

// Mac proves that its maker has the target's token.
type Mac [32]byte

// Equal compares in constant time.
func (m Mac) Equal(other Mac) bool { return hmac.Equal(m[:], other[:]) }

// MacHello is the MAC of a Hello: HMAC-SHA256 under the target's token over the challenge and the whole Hello, its Mac
// taken as zero. So nonces, both engines, name, session and offers are covered, and no MAC fits another connection.
func MacHello(token Token, challenge Nonce, h *Hello) (Mac, error) {
	plain := *h
	plain.Mac = Mac{}
	return macOver(token, "gorail hello 1", challenge, Nonce{}, &plain)
}

// MacWelcome is the MAC of a Welcome, over both nonces and the whole Welcome, its Mac taken as zero.
func MacWelcome(token Token, challenge, hello Nonce, w *Welcome) (Mac, error) {
	plain := *w
	plain.Mac = Mac{}
	return macOver(token, "gorail welcome 1", challenge, hello, &plain)
}

// MacResume is the MAC of a Resume: as MacHello.
func MacResume(token Token, challenge Nonce, r *Resume) (Mac, error) {
	plain := *r
	plain.Mac = Mac{}
	return macOver(token, "gorail resume 1", challenge, Nonce{}, &plain)
}

// MacResumed is the MAC of a Resumed: as MacWelcome.
func MacResumed(token Token, challenge, resume Nonce, r *Resumed) (Mac, error) {
	plain := *r
	plain.Mac = Mac{}
	return macOver(token, "gorail resumed 1", challenge, resume, &plain)
}

// MacReject is the MAC of a Reject: as MacWelcome, with the nonce of the Hello or Resume that it answers.
func MacReject(token Token, challenge, asked Nonce, r *Reject) (Mac, error) {
	plain := *r
	plain.Mac = Mac{}
	return macOver(token, "gorail reject 1", challenge, asked, &plain)
}

// macOver separates its fields by fixed or stated lengths. The error is that of encoding the frame.
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
