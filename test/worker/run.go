package worker

import (
	"fmt"
	"io"
	"net/rpc"
	"os"
	"runtime"
	"runtime/debug"
)

const (
	envRun    = "GORAIL_TEST_WORKER"   // set: this process is a worker
	envListen = "GORAIL_TEST_LISTENER" // set: a worker whose commands come over a connection to the listener it has inherited
	envWheel  = "GORAIL_WORKER_WHEEL"  // site-packages to load NIXL from
	service   = "Worker"               // net/rpc service name
	fdIn      = 3                      // or the listener
	fdOut     = 4
)

type pipe struct {
	io.ReadCloser
	w io.WriteCloser
}

func (p pipe) Write(b []byte) (int, error) { return p.w.Write(b) }
func (p pipe) Close() error {
	_ = p.w.Close()
	return p.ReadCloser.Close()
}

// MaybeRun serves commands and exits when the process was started as a worker or a
// keeper; otherwise it returns at once.
func MaybeRun() {
	var commands io.ReadWriteCloser
	var err error
	switch {
	case os.Getenv(envRun) != "":
		commands = pipe{os.NewFile(fdIn, "commands"), os.NewFile(fdOut, "replies")}
	case os.Getenv(envListen) != "":
		commands, err = listener()
	case os.Getenv(EnvKeep) != "":
		if err = keep(os.Getenv(EnvKeep)); err == nil {
			os.Exit(0)
		}
	default:
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	// Go's own garbage would only add noise to the timed loops.
	debug.SetGCPercent(400)
	runtime.LockOSThread()
	s := rpc.NewServer()
	if err := s.RegisterName(service, newServer(os.Getenv(envWheel))); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	s.ServeConn(commands)
	os.Exit(0)
}
