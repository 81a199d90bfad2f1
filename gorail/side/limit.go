package side

import (
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
	if len(in.Routes) != 1 || s.buf == nil {
		return errors.New("a limit takes one route, of an open process")
	}
	target, r := len(s.peers) == 0, in.Routes[0]
	if s.remote { // the copies are in C
		if err := s.points(in.Point, r); err != nil {
			return err
		}
	}
	base := uint64(0)
	if !target {
		base = s.peers[0].Base
	}
	here, there := r.ids(in.Point)
	for t := range in.Point.Threads {
		var list []limits.Desc
		for k := range in.Point.Batch {
			at, to := r.Local.At(t, here(k)), r.Remote.At(t, there(k))
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
func (s *Server) points(p measure.Point, r Route) error {
	if p.Threads < 1 || p.Threads > mostThreads || p.Batch < 1 || p.Batch > r.Local.N || p.Threads*p.Batch > mostDescs || r.Remote.N != r.Local.N || p.Block != r.Local.Len {
		return fmt.Errorf("%d threads with %d of %d descriptors are refused from another host", p.Threads, p.Batch, r.Local.N)
	}
	return within(uint64(len(s.buf.Host())), r.Local, p.Threads)
}

// ids returns functions from the k-th descriptor of a transfer to its place on either side.
func (r Route) ids(p measure.Point) (here, there func(int) int) {
	if p.IDs == "" {
		same := func(k int) int { return k }
		return same, same
	}
	local, remote := layout.IDs(p.IDs, r.Local.N, r.Seeds[0]), layout.IDs(p.IDs, r.Remote.N, r.Seeds[1])
	return func(k int) int { return int(local[k]) }, func(k int) int { return int(remote[k]) }
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
