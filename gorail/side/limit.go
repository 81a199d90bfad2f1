package side

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"os"

	"gorail/gorail/bench/layout"
	"gorail/gorail/limits"
	"gorail/gorail/measure"
)

// prepareLimit sets up the copies of each thread, and connects the threads for tcp. Of blocks only the first set is copied.
func (s *Server) prepareLimit(in PointArgs, out *PointOut) error {
	if s.buf == nil {
		return errors.New("the process is not open")
	}
	p, target := in.Point, s.peer == nil
	if s.remote {
		if err := s.points(p); err != nil {
			return err
		}
	}
	base := uint64(0)
	if !target {
		base = s.peer.Base
	}
	here, there, place := s.ids(p, InitiatorOrder), s.ids(p, TargetOrder), p.Place()
	if target {
		here, there = there, here
	}
	for t := range in.Point.Threads {
		var list []limits.Desc
		for k := range in.Point.Batch {
			at, to := place.At(t, int(here[k])), place.At(t, int(there[k]))
			d := limits.Desc{Local: s.buf.Host()[at : at+in.Point.Block], At: uintptr(base + to)}
			if s.copyTarget != nil {
				d.Remote = s.copyTarget.Host()[to : to+in.Point.Block]
			}
			list = append(list, d)
		}
		s.point.jobs = append(s.point.jobs, limits.Job{Descs: list})
	}
	switch {
	case s.in.Limit != "tcp":
		return nil
	case target:
		return s.answerAll(in, out)
	}
	for t := range s.point.jobs {
		conn, err := net.Dial("tcp", in.Addr)
		if err != nil {
			return err
		}
		if s.point.jobs[t].Sock, err = s.take(conn); err != nil {
			return err
		}
	}
	return nil
}

// points refuses a point whose descriptors are not all in the buffer.
func (s *Server) points(p measure.Point) error {
	place := p.Place()
	if p.Threads < 1 || p.Threads > mostThreads || p.Batch < 1 || p.Batch > mostDescs || p.Pool < 0 || p.Pool > mostDescs || p.Threads*p.Batch*p.Sets() > mostDescs {
		return fmt.Errorf("%d threads with %d descriptors are refused from another host", p.Threads, p.Batch)
	}
	return within(uint64(len(s.buf.Host())), place, p.Threads)
}

// ids are the numbers of the descriptors in the order of transfers.
func (s *Server) ids(p measure.Point, order uint64) []int32 {
	return layout.IDs(cmp.Or(p.IDs, layout.InOrder), p.Batch*p.Sets(), order)
}

// answerAll serves one connection per thread, in the order of the threads.
func (s *Server) answerAll(in PointArgs, out *PointOut) (err error) {
	if s.listen, err = net.Listen("tcp", ":0"); err != nil {
		return err
	}
	out.Port = s.listen.Addr().(*net.TCPAddr).Port
	go func(l net.Listener, op string, jobs []limits.Job) {
		for _, j := range jobs {
			conn, err := l.Accept()
			if err != nil {
				return // the point has ended
			}
			f, err := file(conn)
			if err != nil {
				return
			}
			go func() {
				defer f.Close()
				if err := limits.Answer(int(f.Fd()), op, j.Descs); err != nil {
					fmt.Fprintln(os.Stderr, "tcp:", err)
				}
			}()
		}
	}(s.listen, in.Point.Op, s.point.jobs)
	return nil
}

// take turns a connection into a blocking socket. drop closes the socket.
func (s *Server) take(conn net.Conn) (int, error) {
	f, err := file(conn)
	if err != nil {
		return 0, err
	}
	s.point.socks = append(s.point.socks, f)
	return int(f.Fd()), nil
}

// file returns a connection's socket, without Nagle's delay (Go's default). The socket is in blocking mode once Fd is
// called.
func file(conn net.Conn) (*os.File, error) {
	defer conn.Close()
	return conn.(*net.TCPConn).File()
}

// Runs reports whether a limit can be measured at a point: a limit copies one transfer after the other.
func Runs(p measure.Point) bool { return p.Transfers() && p.Depth == 1 }
