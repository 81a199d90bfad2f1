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
	envRun   = "GORAIL_TEST_WORKER"  // set: this process is a worker
	envWheel = "GORAIL_WORKER_WHEEL" // site-packages to load NIXL from
	service  = "Worker"              // net/rpc service name
	fdIn     = 3
	fdOut    = 4
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

// MaybeRun serves commands and exits when the process was started as a worker;
// otherwise it returns at once.
func MaybeRun() {
	if os.Getenv(envRun) == "" {
		return
	}
	// Go's own garbage would only add noise to the timed loops.
	debug.SetGCPercent(400)
	runtime.LockOSThread()
	s := rpc.NewServer()
	if err := s.RegisterName(service, newServer(os.Getenv(envWheel))); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	s.ServeConn(pipe{os.NewFile(fdIn, "commands"), os.NewFile(fdOut, "replies")})
	os.Exit(0)
}
