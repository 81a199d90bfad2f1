package worker

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"syscall"

	"golang.org/x/sys/unix"

	"gorail/internal/subprocess"
)

const (
	envRun   = "GORAIL_TEST_WORKER"  // set: this process is a worker
	envWheel = "GORAIL_WORKER_WHEEL" // site-packages to load NIXL from
	service  = "Worker"              // net/rpc service name
)

// MaybeRun serves commands and exits if the process was started as a worker or a keeper. Otherwise it returns at once.
func MaybeRun() {
	ownProc()
	var err error
	switch {
	case os.Getenv(envProgram) != "":
		err = program(os.Getenv(envProgram))
	case os.Getenv(envRun) != "":
		// Go's garbage collection would disturb the timed loops.
		debug.SetGCPercent(400)
		go func() {
			runtime.LockOSThread()
			end(subprocess.Serve(service, newServer(os.Getenv(envWheel))))
		}()
		<-mainEnds
		_, _, _ = unix.Syscall(unix.SYS_EXIT, 0, 0, 0) // of the thread
	case os.Getenv(EnvKeep) != "":
		err = keep(os.Getenv(EnvKeep))
	default:
		return
	}
	end(err)
}

func end(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	os.Exit(0)
}

// mainEnds is closed when the process's first thread shall end. The main goroutine runs on it.
var mainEnds = make(chan struct{})

func init() {
	if os.Getenv(envRun) != "" {
		runtime.LockOSThread()
	}
}

// OwnProc is a variable for the first process of a pid namespace with its own mounts. It makes that process mount a
// /proc of the namespace, because a GPU driver looks up its own process there.
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
