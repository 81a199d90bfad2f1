package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Clock is the time of this process's host.
func (s *Server) Clock(_ None, out *time.Duration) error {
	*out = Now()
	return nil
}

// Die kills the process, as kill -9 does. There is no answer.
func (s *Server) Die(None, *None) error {
	return unix.Kill(os.Getpid(), unix.SIGKILL)
}

// SlowArgs say how a process is slow: stopped for For of each Each until Until, a time of Now of the process.
type SlowArgs struct{ For, Each, Until time.Duration }

// mostSlow bounds how long a process can be slow.
const mostSlow = time.Hour

// Slow makes the process slow, and returns when that has ended. A second process stops and continues this one. It has this process as a
// descriptor (a pidfd), so it can stop no other.
func (s *Server) Slow(in SlowArgs, _ *None) error {
	if !s.slow.TryLock() {
		return errors.New("the process is slow already")
	}
	defer s.slow.Unlock()
	if in.For <= 0 || in.Each <= in.For || in.Each > mostSlow || in.Until-Now() > mostSlow {
		return fmt.Errorf("slow for %v of each %v in the next %v: want a part of each, and %v at most", in.For, in.Each, in.Until-Now(), mostSlow)
	}
	self, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		return os.NewSyscallError("pidfd_open", err)
	}
	f := os.NewFile(uintptr(self), "self")
	defer f.Close()
	c := exec.Command("/proc/self/exe", Command, in.For.String(), in.Each.String(), in.Until.String())
	c.ExtraFiles = []*os.File{f}
	c.Stderr = os.Stderr
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // with the thread that starts it
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return c.Run()
}

// given is the descriptor of the process that Stopper stops.
const given = 3

// Stopper is the second process of Slow. args are its durations.
func Stopper(args []string) error {
	var in [3]time.Duration
	var err error
	for i := range in {
		d, e := time.ParseDuration(args[i])
		in[i], err = d, errors.Join(err, e)
	}
	if err != nil {
		return err
	}
	ctx, end := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer end()
	send := func(sig syscall.Signal) error {
		return os.NewSyscallError("pidfd_send_signal", unix.PidfdSendSignal(given, sig, nil, 0))
	}
	wait := func(d time.Duration) {
		select {
		case <-time.After(d):
		case <-ctx.Done():
		}
	}
	for Now() < in[2] && ctx.Err() == nil {
		if err := send(unix.SIGSTOP); err != nil {
			return err // it has ended
		}
		wait(in[0])
		if err := send(unix.SIGCONT); err != nil {
			return err
		}
		wait(in[1] - in[0])
	}
	return nil
}
