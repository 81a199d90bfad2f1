package side

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"
)

// EnvToken holds the token for addresses without one. Arguments can be seen by other users.
const EnvToken = "GORAIL_PEER_TOKEN"

const (
	tokenLen  = 16 // bytes
	nonceLen  = 32
	proofTime = 5 * time.Second // for the proofs of both ends
	greeting  = "gorail listens\n"
)

// SplitAddr divides HOST:PORT#TOKEN. The token is EnvToken's if the address has none.
func SplitAddr(addr string) (at, token string) {
	at, token, given := strings.Cut(addr, "#")
	if !given {
		token = os.Getenv(EnvToken)
	}
	return at, token
}

// WithoutToken is an address for messages and reports.
func WithoutToken(addr string) string {
	at, _, _ := strings.Cut(addr, "#")
	return at
}

// Reported is a flag's value for reports: who reads them must not get a listener's token.
func Reported(flag, value string) string {
	if flag == "connect" || flag == "peer" {
		return WithoutToken(value)
	}
	return value
}

func newToken() []byte {
	t := make([]byte, tokenLen)
	_, _ = rand.Read(t)
	return t
}

// proof is what an end shows of the token. It is bound to both nonces, and to the end.
func proof(token []byte, end string, ours, theirs []byte) []byte {
	m := hmac.New(sha256.New, token)
	for _, part := range [][]byte{[]byte(end), ours, theirs} {
		m.Write(part)
	}
	return m.Sum(nil)
}

var errToken = errors.New("the token is wrong")

// admit asks a caller for a proof of the token, and gives ours. A caller without it has sent no more than a nonce and a proof.
func admit(c net.Conn, token []byte) error {
	_ = c.SetDeadline(time.Now().Add(proofTime))
	own := make([]byte, nonceLen)
	_, _ = rand.Read(own)
	if _, err := c.Write(append([]byte(greeting), own...)); err != nil {
		return err
	}
	in := make([]byte, nonceLen+sha256.Size)
	if _, err := io.ReadFull(c, in); err != nil {
		return err
	}
	theirs := in[:nonceLen]
	if !hmac.Equal(in[nonceLen:], proof(token, "caller", own, theirs)) {
		return errToken
	}
	if _, err := c.Write(proof(token, "listener", own, theirs)); err != nil {
		return err
	}
	return c.SetDeadline(time.Time{})
}

// present proves the token to a listener, and checks the listener's proof.
func present(c net.Conn, text string) error {
	token, err := hex.DecodeString(text)
	if err != nil || len(token) != tokenLen {
		return fmt.Errorf("no token for the listener there: give the address as it is printed there, HOST:PORT#TOKEN, or set %s", EnvToken)
	}
	_ = c.SetDeadline(time.Now().Add(2 * proofTime))
	in := make([]byte, len(greeting)+nonceLen)
	if _, err := io.ReadFull(c, in); err != nil || string(in[:len(greeting)]) != greeting {
		return errors.New("it does not answer as gorail bench --listen or gorail doctor --listen of this version: install the same version on both hosts")
	}
	theirs, own := in[len(greeting):], make([]byte, nonceLen)
	_, _ = rand.Read(own)
	if _, err := c.Write(append(own, proof(token, "caller", theirs, own)...)); err != nil {
		return err
	}
	answer := make([]byte, sha256.Size)
	if _, err := io.ReadFull(c, answer); err != nil || !hmac.Equal(answer, proof(token, "listener", theirs, own)) {
		return fmt.Errorf("%w: each start of --listen prints another one", errToken)
	}
	return c.SetDeadline(time.Time{})
}
