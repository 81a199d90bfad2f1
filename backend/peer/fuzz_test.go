package peer

import (
	"io"
	"net"
	"testing"
	"time"

	"gorail/backend/wire"
)

// FuzzAccept sends arbitrary bytes to the accepting side, as an unauthenticated connection or (proved) after a good
// handshake. Nothing may crash, hang or outlive the node, and only an authenticated initiator reaches the handler.
func FuzzAccept(f *testing.F) {
	frame := func(fs ...wire.Frame) (out []byte) {
		for _, fr := range fs {
			out, _ = wire.AppendFrame(out, fr)
		}
		return out
	}
	f.Add(false, []byte{})
	f.Add(false, []byte("GET / HTTP/1.1\r\n\r\n"))
	f.Add(false, frame(&wire.Hello{Agent: "stranger", Session: 1}))
	f.Add(false, frame(&wire.Open{Version: wire.Version}, &wire.KeysReq{ID: 1}))
	f.Add(false, frame(&wire.Ping{Seq: 1}))
	f.Add(false, frame(&wire.Resume{Session: 1, Try: 1}, &wire.KeysReq{ID: 1}))
	f.Add(true, frame(&wire.Pong{Got: 1}, &wire.Resume{}))
	f.Add(false, []byte{0xff, 0xff, 0xff, 0xff, byte(wire.TypeHello)})
	f.Add(true, frame(&wire.KeysReq{ID: 1, Ranges: []wire.Claim{{Range: wire.Range{Addr: 4096, Len: 64}, Cap: wire.Cap{1}}}}, &wire.Ping{Seq: 1}, &wire.Bye{Text: "bye"}))
	f.Add(true, frame(&wire.Fence{ID: 1, Rail: 1, Epoch: 1, Addr: []byte("new")}, &wire.Revoked{ID: 1, All: true}))
	f.Add(true, frame(&wire.Welcome{}, &wire.Challenge{}))
	f.Add(true, frame(&wire.SnapshotReq{ID: 1}, &wire.SnapshotReq{ID: 1}, &wire.Snapshot{State: wire.SnapshotServing}))
	f.Add(false, frame(&wire.Open{Version: wire.Version}, &wire.SnapshotReq{ID: 1}))
	f.Add(true, []byte{0, 0, 0, 3, byte(wire.TypeKeysReq), 0x82, 1, 0x81})
	cfg, key := config("fuzzed"), config("").Key
	cfg.PeerTimeout = time.Minute
	f.Fuzz(func(t *testing.T, proved bool, data []byte) {
		s := newTarget()
		n := newNode(cfg, s)
		raw, there := net.Pipe()
		_ = raw.SetDeadline(time.Now().Add(testTimeout))
		n.admit(there)
		var here net.Conn = raw
		if proved {
			here, _ = handshakeByHand(t, raw, cfg.Identity, key)
		} else if _, err := wire.ReadFrame(here, 0); err != nil {
			t.Fatal(err)
		}
		drained := make(chan struct{})
		go func() {
			defer close(drained)
			_, _ = io.Copy(io.Discard, here)
		}()
		_, _ = here.Write(data)
		here.Close()
		<-drained
		start := time.Now()
		n.Close()
		if stats := n.Stats(); stats.In+stats.HalfOpen+stats.Stuck != 0 {
			t.Fatalf("left behind after %v: %+v", time.Since(start), stats)
		}
		hellos, gones := 0, 0
		for len(s.events) > 0 {
			switch (<-s.events).(type) {
			case evHello:
				hellos++
			case evGone:
				gones++
			}
		}
		if hellos != gones || proved != (hellos == 1) {
			t.Fatalf("proved %v: %d Hello, %d Gone", proved, hellos, gones)
		}
	})
}
