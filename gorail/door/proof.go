package door

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"
)

// The frames before all commands, each of one size:
//
//	listener  magic, its random number
//	caller    magic, its random number, HMAC(token, "caller", both numbers)
//	listener  an answer, HMAC(token, "listener", the answer, both numbers); zeros after a wrong proof
const (
	magic   = "GORAILd1"
	numSize = 32
	greet   = len(magic) + numSize
	ask     = len(magic) + numSize + sha256.Size
	reply   = 1 + sha256.Size
)

// Answers of a listener.
const (
	welcome byte = iota
	unproved
	busy  // as many processes serve as may at a time
	spent // as many have served as may in all
	broken
)

// tokenSize is the size of a token in bytes.
const tokenSize = 20

// newToken makes a token of 160 random bits.
func newToken() string {
	b := make([]byte, tokenSize)
	_, _ = rand.Read(b) // never fails
	return strings.ToLower(base32.StdEncoding.EncodeToString(b))
}

func number() []byte {
	b := make([]byte, numSize)
	_, _ = rand.Read(b)
	return b
}

func prove(token, who string, parts ...[]byte) []byte {
	h := hmac.New(sha256.New, []byte(token))
	_, _ = io.WriteString(h, who)
	for _, p := range parts {
		_, _ = h.Write(p)
	}
	return h.Sum(nil)
}

// dialTime bounds the frames of a caller.
const dialTime = 10 * time.Second

// Dial connects to a listener, and returns once both ends have proved the token.
func Dial(p Place) (*net.TCPConn, error) {
	c, err := net.DialTimeout("tcp", p.Addr, dialTime)
	if err != nil {
		return nil, fmt.Errorf("%w (is gorail bench --listen or gorail doctor --listen running there?)", err)
	}
	token, err := p.secret()
	if err == nil {
		err = enter(c, token)
	}
	if err != nil {
		_ = c.Close()
		return nil, &Refused{p.Addr, err}
	}
	return c.(*net.TCPConn), nil
}

// Refused is the error of a connection that was made, and then not let in.
type Refused struct {
	At  string
	Why error
}

func (e *Refused) Error() string { return e.At + ": " + e.Why.Error() }
func (e *Refused) Unwrap() error { return e.Why }

func enter(c net.Conn, token string) error {
	if err := c.SetDeadline(time.Now().Add(dialTime)); err != nil {
		return err
	}
	head := make([]byte, greet)
	if _, err := io.ReadFull(c, head); err != nil || string(head[:len(magic)]) != magic {
		if err == nil || errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, io.ErrUnexpectedEOF) {
			return errors.New("another program, or an earlier version of gorail, answers there; install the same version on both hosts")
		}
		return fmt.Errorf("the listener ended the connection: %w; it may have too many callers: try again", err)
	}
	theirs, own := head[len(magic):], number()
	if _, err := c.Write(append(append([]byte(magic), own...), prove(token, "caller", theirs, own)...)); err != nil {
		return err
	}
	out := make([]byte, reply)
	if _, err := io.ReadFull(c, out); err != nil {
		return fmt.Errorf("the listener does not answer to the token: %w", err)
	}
	if out[0] != unproved && !hmac.Equal(out[1:], prove(token, "listener", out[:1], theirs, own)) {
		return errors.New("who listens there does not know the token: it is not the gorail --listen that printed it")
	}
	if err := because(out[0]); err != nil {
		return err
	}
	return c.SetDeadline(time.Time{})
}

// because is an answer in words.
func because(answer byte) error {
	switch answer {
	case welcome:
		return nil
	case unproved:
		return errors.New("wrong token: --listen makes a new one at each start and prints it; write HOST:PORT#TOKEN, or set " + EnvToken)
	case busy:
		return errors.New("as many processes serve there as may at a time: wait until some have ended")
	case spent:
		return errors.New("that --listen has started as many processes as it may: start it again")
	}
	return errors.New("no process could be started there: its standard error says why")
}

// greeted reads a caller's proof. The answer is unproved without it; the numbers are for the proof of the answer.
func greeted(c net.Conn, token string) (numbers [2][]byte, ok bool, err error) {
	own := number()
	if _, err := c.Write(append([]byte(magic), own...)); err != nil {
		return numbers, false, err
	}
	in := make([]byte, ask)
	if _, err := io.ReadFull(c, in); err != nil {
		return numbers, false, err
	}
	theirs, proof := in[len(magic):len(magic)+numSize], in[len(magic)+numSize:]
	ok = hmac.Equal(proof, prove(token, "caller", own, theirs)) && string(in[:len(magic)]) == magic
	return [2][]byte{own, theirs}, ok, nil
}

// tell sends an answer.
func tell(c net.Conn, token string, answer byte, numbers [2][]byte) error {
	out := []byte{answer}
	if answer == unproved {
		out = append(out, make([]byte, sha256.Size)...)
	} else {
		out = append(out, prove(token, "listener", out, numbers[0], numbers[1])...)
	}
	_, err := c.Write(out)
	return err
}
