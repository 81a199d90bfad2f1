package worker

import (
	"fmt"
	"io"
	"net/rpc"
	"os"
	"runtime"
	"runtime/debug"
	"syscall"
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
	ownProc()
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

// OwnProc is a variable that has the first process of a pid namespace, with mounts of its own, mount a /proc of that namespace: a GPU's
// driver looks itself up there.
const OwnProc = "GORAIL_WORKER_OWN_PROC"

func ownProc() {
	if os.Getenv(OwnProc) == "" || os.Getpid() != 1 {
		return
	}
	err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, "")
	if err == nil {
		err = syscall.Mount("proc", "/proc", "proc", 0, "")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "worker: /proc of the pid namespace:", err)
	}
}
