package subprocess

import (
	"errors"
	"net"
	"net/rpc"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// inherited is the descriptor that Exec hands on.
const inherited = 3

// patience is how long a process with a listener waits for its connection.
const patience = 2 * time.Minute

// ErrAlone is Serve's error in a process that Exec has not started.
var ErrAlone = errors.New("no connection was inherited: this program starts such processes itself")

// Serve obeys the commands of the process that started this one, until that closes the connection. The exported methods
// of server are the commands; net/rpc says what they look like.
func Serve(service string, server any) error {
	conn, err := commands()
	if err != nil {
		return err
	}
	r := rpc.NewServer()
	if err := r.RegisterName(service, server); err != nil {
		return err
	}
	r.ServeConn(conn)
	return nil
}

// commands is the connection that was inherited, or the first that an inherited listener accepts. It blocks a thread
// instead of waiting in Go's poller: a process whose goroutines all spin hears of a command at once.
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
	_ = l.(*net.TCPListener).SetDeadline(time.Now().Add(patience))
	conn, err := l.Accept()
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	return conn.(*net.TCPConn).File()
}
