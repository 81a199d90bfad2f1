package peer

import "sync/atomic"

// Stats is a snapshot of a node's counters. All but In, Out and HalfOpen only grow.
type Stats struct {
	In, Out, HalfOpen uint64 // now: sessions of each direction, handshakes of unproved connections

	Accepted     uint64 // handshakes that ended well, as the target
	Refused      uint64 // Hello refused by the TargetHandler
	BadToken     uint64 // wrong MAC
	BadFrame     uint64 // not our protocol, or broken off before the Hello
	BadVersion   uint64 // another version of the protocol
	WrongEngine  uint64 // meant an engine that was here before
	TimedOut     uint64 // handshakes that took too long
	MadeRoom     uint64 // handshakes of unproved connections that were thrown out for others
	AcceptErrors uint64 // accept failed: out of descriptors, for one

	Dialed      uint64 // sessions begun as the initiator
	Established uint64 // of these, the ones that became ready
	Resumed     uint64 // lines of both directions that took the place of another in their session
	Resent      uint64 // frames that were sent again for it
	BadResume   uint64 // resumes refused, as the target: unknown session, wrong proof, a number that can't be
	Lost        uint64 // sessions of both directions that ended in Lost
	Closed      uint64 // and in Closed
	Overflows   uint64 // of the lost ones, those whose queue was full
	Stuck       uint64 // goroutines that were in a handler when Close gave up waiting

	FramesSent, FramesReceived uint64
	BytesSent                  uint64
}

type counters struct {
	accepted, refused, badToken, badFrame, badVersion, wrongEngine, timedOut, madeRoom, acceptErrors atomic.Uint64
	resumed, resent, badResume                                                                       atomic.Uint64
	dialed, established, lost, closed, overflows, stuck                                              atomic.Uint64
	framesSent, framesReceived, bytesSent                                                            atomic.Uint64
}

// Stats reads the counters. It never waits for the network.
func (n *Node) Stats() Stats {
	c := &n.count
	s := Stats{
		Accepted: c.accepted.Load(), Refused: c.refused.Load(), BadToken: c.badToken.Load(), BadFrame: c.badFrame.Load(),
		BadVersion: c.badVersion.Load(), WrongEngine: c.wrongEngine.Load(), TimedOut: c.timedOut.Load(),
		MadeRoom: c.madeRoom.Load(), AcceptErrors: c.acceptErrors.Load(),
		Resumed: c.resumed.Load(), Resent: c.resent.Load(), BadResume: c.badResume.Load(),
		Dialed: c.dialed.Load(), Established: c.established.Load(), Lost: c.lost.Load(), Closed: c.closed.Load(),
		Overflows: c.overflows.Load(), Stuck: c.stuck.Load(),
		FramesSent: c.framesSent.Load(), FramesReceived: c.framesReceived.Load(), BytesSent: c.bytesSent.Load(),
		HalfOpen: uint64(n.gate.halfOpen()),
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for s2 := range n.sessions {
		if s2.inbound {
			s.In++
		} else {
			s.Out++
		}
	}
	return s
}
