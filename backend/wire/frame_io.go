package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// A frame is: the length of the body (u32, big endian), the type (u8), the body (CBOR).
const frameHead = 5

// HandshakeLimit is enough for every frame up to and including Welcome. Use it with ReadFrame until the session begins.
const HandshakeLimit = 256 << 10

// AppendFrame appends a whole frame to dst. It returns ErrLimit or ErrFormat, with dst unchanged, for a frame that
// ReadFrame would refuse.
func AppendFrame(dst []byte, f Frame) ([]byte, error) {
	body, err := marshal(f, f.check)
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

// WriteFrame writes a whole frame with one call of Write. The caller's lock serializes the writers of one connection.
func WriteFrame(w io.Writer, f Frame) error {
	out, err := AppendFrame(nil, f)
	if err != nil {
		return err
	}
	_, err = w.Write(out)
	return err
}

// ReadFrame reads exactly one frame, with at most max bytes of body; max = 0 or above MaxBody means MaxBody. Memory
// grows with the bytes that have arrived, and not with the length in the header. It returns io.EOF between frames,
// and io.ErrUnexpectedEOF within a frame. It returns ErrLimit, ErrKind or ErrFormat for a bad frame; the stream is
// unusable afterwards.
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
	if n > uint32(max) { //limit:frame_body
		return nil, fmt.Errorf("%w: %v frame of %d bytes, at most %d", ErrLimit, t, n, max)
	}
	var body bytes.Buffer
	if _, err := io.CopyN(&body, r, int64(n)); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, fmt.Errorf("%v frame: %w", t, err)
	}
	if err := unmarshal(body.Bytes(), f, f.check); err != nil {
		return nil, fmt.Errorf("%v frame: %w", t, err)
	}
	return f, nil
}
