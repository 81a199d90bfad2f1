package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// A frame is: length of the body (u32, big endian), type (u8), body (CBOR).
const frameHead = 5

// HandshakeLimit is enough for every frame up to Welcome; use it with ReadFrame before the other side has proved itself.
const HandshakeLimit = 128 << 10

// AppendFrame appends a whole frame to dst. ErrLimit or ErrFormat for one that ReadFrame would refuse; dst is unchanged then.
func AppendFrame(dst []byte, f Frame) ([]byte, error) {
	body, err := marshal(f)
	if err == nil {
		err = limit("bytes of the body", len(body), MaxBody)
	}
	if err != nil {
		return dst, fmt.Errorf("%v frame: %w", f.Type(), err)
	}
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(body)))
	dst = append(dst, byte(f.Type()))
	return append(dst, body...), nil
}

// WriteFrame writes a whole frame with one Write; writers on one connection take turns by the caller's lock.
func WriteFrame(w io.Writer, f Frame) error {
	out, err := AppendFrame(nil, f)
	if err != nil {
		return err
	}
	_, err = w.Write(out)
	return err
}

// ReadFrame reads one frame of at most max bytes of body (0 or above MaxBody: MaxBody), and no byte beyond it. Memory grows with what has arrived, not
// with what the header claims. io.EOF between frames, io.ErrUnexpectedEOF within one; ErrLimit, ErrKind or ErrFormat for
// a bad one, after which the stream is of no more use.
func ReadFrame(r io.Reader, max int) (Frame, error) {
	if max <= 0 || max > MaxBody {
		max = MaxBody
	}
	var head [frameHead]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	t, n := FrameType(head[4]), binary.BigEndian.Uint32(head[:])
	f := newFrame(t)
	if f == nil {
		return nil, fmt.Errorf("%w: frame of %v", ErrKind, t)
	}
	if n > uint32(max) {
		return nil, fmt.Errorf("%w: %v frame of %d bytes, at most %d", ErrLimit, t, n, max)
	}
	var body bytes.Buffer
	if _, err := io.CopyN(&body, r, int64(n)); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, fmt.Errorf("%v frame: %w", t, err)
	}
	if err := unmarshal(body.Bytes(), f); err != nil {
		return nil, fmt.Errorf("%v frame: %w", t, err)
	}
	return f, nil
}
