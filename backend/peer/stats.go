package peer

import (
	"sync/atomic"

	"gorail/backend/peer/stream"
)

// Stats is a snapshot of a node's counters. All but In, Out and HalfOpen only grow.
type Stats struct {
	In, Out, HalfOpen uint64 // now: sessions of each direction, handshakes of unproved connections

	AcceptStats
	SessionStats
	FrameStats
}

// AcceptStats count the handshakes of a target.
type AcceptStats struct {
	Accepted     uint64 // handshakes that ended well, as the target
	Refused      uint64 // Hello refused by the TargetHandler
	BadToken     uint64 // wrong MAC
	BadFrame     uint64 // not our protocol, or broken off before the Hello
	BadVersion   uint64 // another version of the protocol
	WrongEngine  uint64 // meant an engine that was here before
	TimedOut     uint64 // handshakes that took too long
	MadeRoom     uint64 // handshakes of unproved connections that were thrown out for others
	AcceptErrors uint64 // accept failed: out of descriptors, for one
}

// SessionStats count beginnings and ends of sessions, and of their connections.
type SessionStats struct {
	Dialed      uint64 // sessions begun as the initiator
	Established uint64 // of these, the ones that became ready
	Resumed     uint64 // connections of both directions that took the place of another in their session
	Resent      uint64 // frames that were sent again for it
	BadResume   uint64 // resumes refused, as the target: unknown session, wrong proof, a number that can't be
	Lost        uint64 // sessions of both directions that ended in Lost
	Closed      uint64 // and in Closed
	Overflows   uint64 // of the lost ones, those whose queue was full
	Stuck       uint64 // goroutines that were in a handler when Close gave up waiting
}

// FrameStats count what sessions that are ready send and receive.
type FrameStats struct {
	FramesSent, FramesReceived uint64
	BytesSent                  uint64
}

// counters are those that a node counts itself; its streams have others.
type counters struct {
	accepted, refused, badToken, badFrame, badVersion, wrongEngine, timedOut, madeRoom, acceptErrors atomic.Uint64
	dialed, established, badResume, lost, closed, stuck                                              atomic.Uint64
}

// read gives all but what is now.
func (c *counters) read(s *stream.Counters) Stats {
	return Stats{
		AcceptStats: AcceptStats{
			Accepted: c.accepted.Load(), Refused: c.refused.Load(), BadToken: c.badToken.Load(), BadFrame: c.badFrame.Load(),
			BadVersion: c.badVersion.Load(), WrongEngine: c.wrongEngine.Load(), TimedOut: c.timedOut.Load(),
			MadeRoom: c.madeRoom.Load(), AcceptErrors: c.acceptErrors.Load(),
		},
		SessionStats: SessionStats{
			Dialed: c.dialed.Load(), Established: c.established.Load(), Resumed: s.Resumed.Load(), Resent: s.Resent.Load(),
			BadResume: c.badResume.Load(), Lost: c.lost.Load(), Closed: c.closed.Load(), Overflows: s.Overflows.Load(), Stuck: c.stuck.Load(),
		},
		FrameStats: FrameStats{FramesSent: s.FramesSent.Load(), FramesReceived: s.FramesReceived.Load(), BytesSent: s.BytesSent.Load()},
	}
}
