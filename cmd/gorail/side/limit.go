package side

import (
	"fmt"
	"net"
	"os"

	"gorail/cmd/gorail/limits"
	"gorail/cmd/gorail/measure"
)

// prepareLimit sets up the copies of each thread, and connects the threads for tcp.
func (s *Server) prepareLimit(in PointArgs, out *PointOut) error {
	target := s.peer.Pid == 0
	base := s.peer.Base
	if s.in.Limit == "memcpy" {
		base = s.copyTarget.Addr()
	}
	for t := range in.Point.Threads {
		var list []limits.Desc
		for _, off := range in.Point.Offsets(t, 0) {
			list = append(list, limits.Desc{Local: uintptr(s.buf.Addr() + off), Remote: uintptr(base + off), Len: in.Point.Block})
		}
		s.jobs = append(s.jobs, limits.Job{Descs: list})
	}
	s.op = in.Point.Op
	switch {
	case s.in.Limit != "tcp":
		return nil
	case target:
		return s.answerAll(out)
	}
	for t := range s.jobs {
		conn, err := net.Dial("tcp", in.Addr)
		if err != nil {
			return err
		}
		if s.jobs[t].Sock, err = s.take(conn); err != nil {
			return err
		}
	}
	return nil
}

// answerAll serves one connection per thread, in the order of the threads.
func (s *Server) answerAll(out *PointOut) (err error) {
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
	}(s.listen, s.op, s.jobs)
	return nil
}

// take turns a connection into a blocking socket. drop closes the socket.
func (s *Server) take(conn net.Conn) (int, error) {
	f, err := file(conn)
	if err != nil {
		return 0, err
	}
	s.socks = append(s.socks, f)
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
