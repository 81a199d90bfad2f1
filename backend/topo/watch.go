//go:build linux

package topo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Event is a change of a network interface.
type Event struct {
	Name  string
	Index int  // the kernel's index; the same name may return with another index
	Up    bool // set up, and the lower layer is up
	Gone  bool // the interface no longer exists, or not under this name
	Addrs bool // an address was added or removed; the other fields are unchanged
}

// Watch calls report for every interface in the calling thread's network namespace, and then for every change. It ends
// when the context ends (nil) or the kernel does not answer (an error).
//
// Watch runs on the caller's goroutine and holds no thread while nothing happens. report may be slow: if the kernel drops
// messages meanwhile, Watch reads all links again. Only states that ended in between are missed.
func Watch(ctx context.Context, report func(Event)) error {
	s, err := openSocket()
	if err != nil {
		return fmt.Errorf("watch links: %w", err)
	}
	return s.watch(ctx, report)
}

// linkSocket is a netlink socket that uses the runtime's poller.
type linkSocket struct {
	file  *os.File
	conn  syscall.RawConn
	table *linkTable
	buf   []byte
}

func openSocket() (*linkSocket, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	const groups = unix.RTMGRP_LINK | unix.RTMGRP_IPV4_IFADDR | unix.RTMGRP_IPV6_IFADDR
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups}); err != nil {
		_ = unix.Close(fd)
		return nil, os.NewSyscallError("bind", err)
	}
	s := &linkSocket{file: os.NewFile(uintptr(fd), "netlink"), table: newLinkTable(), buf: make([]byte, 64<<10)}
	if s.conn, err = s.file.SyscallConn(); err != nil {
		_ = s.file.Close()
		return nil, err
	}
	return s, nil
}

// watch is Watch on an open socket. It closes the socket.
func (s *linkSocket) watch(ctx context.Context, report func(Event)) error {
	defer s.file.Close()
	defer context.AfterFunc(ctx, func() { _ = s.file.SetReadDeadline(time.Unix(1, 0)) })()
	err := s.run(ctx, report)
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("watch links: %w", err)
}

func (s *linkSocket) run(ctx context.Context, report func(Event)) error {
	again, pause := true, time.Duration(0)
	for ctx.Err() == nil {
		if again {
			if err := s.ask(); err != nil {
				return err
			}
		}
		messages, lost, err := s.receive()
		if err != nil {
			return err
		}
		again = lost
		for _, m := range messages {
			if m.kind == failure && m.err != nil && m.seq == s.table.seq && !retry(m.err) {
				return fmt.Errorf("list links: %w", m.err)
			}
			events, more := s.table.take(m)
			again = again || more
			for _, e := range events {
				if report(e); ctx.Err() != nil {
					return ctx.Err()
				}
			}
			if m.kind == dumpDone {
				pause = 0
			}
		}
		if again { // links that change faster than we read them must not make us spin
			pause = min(2*pause+time.Millisecond, 100*time.Millisecond)
			if err := sleep(ctx, pause); err != nil {
				return err
			}
		}
	}
	return ctx.Err()
}

// retry reports whether a failed request should be repeated.
func retry(err error) bool {
	return errors.Is(err, unix.EBUSY) || errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.ENOBUFS)
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// ask requests all links, unless a request is open.
func (s *linkSocket) ask() error {
	seq, ok := s.table.ask()
	if !ok {
		return nil
	}
	var sent error
	err := s.conn.Control(func(fd uintptr) {
		sent = unix.Sendto(int(fd), dumpRequest(seq), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	})
	return errors.Join(err, os.NewSyscallError("sendto", sent))
}

// receive waits for one datagram. lost means that the kernel dropped datagrams, or that this one was truncated or
// malformed.
func (s *linkSocket) receive() (messages []linkMessage, lost bool, err error) {
	var n int
	var from unix.Sockaddr
	var failed error
	err = s.conn.Read(func(fd uintptr) bool {
		for {
			n, from, failed = unix.Recvfrom(int(fd), s.buf, unix.MSG_TRUNC)
			if failed != unix.EINTR {
				return failed != unix.EAGAIN
			}
		}
	})
	switch {
	case err != nil:
		return nil, false, err
	case failed == unix.ENOBUFS:
		return nil, true, nil
	case failed != nil:
		return nil, false, os.NewSyscallError("recvfrom", failed)
	case n > len(s.buf):
		return nil, true, nil
	}
	if sender, ok := from.(*unix.SockaddrNetlink); !ok || sender.Pid != 0 {
		return nil, false, nil // not the kernel
	}
	messages, err = parseMessages(s.buf[:n])
	return messages, err != nil, nil
}
