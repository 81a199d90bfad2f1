package subprocess

import (
	"errors"
	"io"
	"net"
	"net/rpc"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// inherited is the descriptor that Exec passes.
const inherited = 3

// acceptTimeout limits how long a process with a listener waits for its connection.
const acceptTimeout = 2 * time.Minute

// ErrAlone is Serve's error in a process that Exec did not start.
var ErrAlone = errors.New("no connection was inherited: this program starts such processes itself")

// Serve executes the commands of the parent process until the parent closes the connection. The exported methods of
// server are the commands; net/rpc defines their form.
func Serve(service string, server any) error { return ServeAll(map[string]any{service: server}) }

// ServeAll is Serve with several servers, by the names of their services.
func ServeAll(servers map[string]any) error { return ServeFar(servers, Far{}) }

// ServeFar is ServeAll with bounds for what the other end sends.
func ServeFar(servers map[string]any, far Far) error {
	conn, err := commands()
	if err != nil {
		return err
	}
	if far.Calls > 0 {
		go endOrphan(int(conn.Fd()))
	}
	return ServeConn(conn, servers, far)
}

// orphanTime is for commands at work when the other end has gone.
const orphanTime = 10 * time.Second

// endOrphan ends the process when the other end of its connection has gone, also while commands are at work.
func endOrphan(fd int) {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
	for n, err := 0, error(unix.EINTR); n <= 0 && (err == unix.EINTR || err == nil); {
		n, err = unix.Poll(p, -1)
	}
	time.Sleep(orphanTime)
	os.Exit(1)
}

// ServeConn is ServeFar over a connection. It returns when the connection has ended.
func ServeConn(conn io.ReadWriteCloser, servers map[string]any, far Far) error {
	r := rpc.NewServer()
	for service, server := range servers {
		if err := r.RegisterName(service, server); err != nil {
			return err
		}
	}
	r.ServeCodec(newCodec(conn, far))
	return nil
}

// commands returns the inherited connection, or the first connection to an inherited listener. Reads block a thread
// instead of waiting in Go's poller. A process whose goroutines all spin thus receives a command at once.
func commands() (*os.File, error) {
	listens, err := unix.GetsockoptInt(inherited, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
	if err != nil {
		return nil, ErrAlone
	}
	unix.CloseOnExec(inherited)
	if listens == 0 {
		if err := unix.SetNonblock(inherited, false); err != nil {
			return nil, os.NewSyscallError("fcntl", err)
		}
		return os.NewFile(inherited, "commands"), nil
	}
	f := os.NewFile(inherited, "listener")
	l, err := net.FileListener(f)
	_ = f.Close()
	if err != nil {
		return nil, err
	}
	defer l.Close()
	_ = l.(*net.TCPListener).SetDeadline(time.Now().Add(acceptTimeout))
	conn, err := l.Accept()
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	return conn.(*net.TCPConn).File()
}
