//go:build linux

package topo

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Event is a change of a network interface.
type Event struct {
	Name  string
	Index int  // the kernel's number; a name may come back with another one
	Up    bool // set up, and the link below is up
	Gone  bool // there is no such interface any more, or not by this name
	Addrs bool // one of its addresses came or went, or may have; the rest is as it was
}

// Watch reports every interface of the calling thread's network namespace, and then every change, until the context ends. It runs on the
// caller's goroutine and holds no thread while nothing happens. report may take long: when the kernel drops messages meanwhile, all links are
// read again, so that only states are missed that have changed again since. Addresses are not read then: each interface is reported as if one
// had changed, and Interfaces has those of now. When the kernel does not answer, failed gets the reason, and Watch goes on with other sockets.
func Watch(ctx context.Context, report func(Event), failed func(error)) {
	w := &watcher{table: linkTable{known: map[int]Event{}, report: report}, failed: failed}
	w.watch(ctx)
}

// watcher has two sockets: messages come unasked on one, the other lists all links.
type watcher struct {
	messages *nl.NetlinkSocket
	lister   *dumper
	table    linkTable
	failed   func(error)
	lists    int // so often all links were read
}

// Bounds of the pause before other sockets are opened.
const (
	firstReopen = 50 * time.Millisecond
	mostReopen  = 2 * time.Second
)

func (w *watcher) watch(ctx context.Context) {
	for pause := firstReopen; ; pause = min(2*pause, mostReopen) {
		began := time.Now()
		err := w.open()
		if err == nil {
			err = w.use(ctx)
		}
		if ctx.Err() != nil {
			return
		}
		w.failed(fmt.Errorf("watch links: %w", err))
		if time.Since(began) > mostReopen {
			pause = firstReopen
		}
		if sleep(ctx, pause) != nil {
			return
		}
	}
}

func (w *watcher) open() (err error) {
	if w.messages, err = nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR); err != nil {
		return err
	}
	if w.lister, err = newDumper(); err != nil {
		w.messages.Close()
	}
	return err
}

// use reports over open sockets, which it closes.
func (w *watcher) use(ctx context.Context) error {
	defer w.lister.close()
	defer w.messages.Close()
	defer context.AfterFunc(ctx, w.messages.Close)()
	return w.run(ctx)
}

// run lists all links at the beginning and after a loss. The messages that the socket still holds are older than those lost: they come first.
func (w *watcher) run(ctx context.Context) error {
	for lost := true; ctx.Err() == nil; {
		if lost && silent(w.messages) {
			err := w.list(ctx)
			if lost = err != nil; !lost {
				continue
			}
			if !passes(err) {
				return fmt.Errorf("list links: %w", err)
			}
			if err := sleep(ctx, 10*time.Millisecond); err != nil { // links that change faster than they can be listed must not make us spin
				return err
			}
			continue
		}
		messages, from, err := w.messages.Receive()
		switch {
		case err == unix.ENOBUFS:
			lost = true
		case err == unix.EINTR:
		case err != nil:
			return err
		case from.Pid == nl.PidKernel:
			for _, m := range messages {
				if ctx.Err() == nil {
					w.take(&m)
				}
			}
		}
	}
	return ctx.Err()
}

// list enters all links. The error is the kernel's: the list is incomplete, or there is none.
func (w *watcher) list(ctx context.Context) error {
	w.lists++
	links, err := w.lister.links()
	if err != nil {
		return err
	}
	missing := map[int]bool{}
	for index := range w.table.known {
		missing[index] = true
	}
	for _, m := range links {
		l, ok := parseLink(m)
		if !ok {
			continue
		}
		delete(missing, l.index)
		if ctx.Err() == nil {
			w.table.is(l)
		}
	}
	for index := range missing {
		w.table.gone(index)
	}
	shared.forget()
	for index := range w.table.known { // what was lost may have been about addresses
		if ctx.Err() == nil {
			w.table.readdressed(index)
		}
	}
	return nil
}

// take enters one message. Those of a bridge about its ports are DELLINKs of a link that stays.
func (w *watcher) take(m *syscall.NetlinkMessage) {
	switch kind := m.Header.Type; {
	case kind == unix.RTM_NEWADDR || kind == unix.RTM_DELADDR:
		if len(m.Data) >= unix.SizeofIfAddrmsg {
			shared.forget() // its socket may get this message later than ours
			w.table.readdressed(int(nl.DeserializeIfAddrmsg(m.Data).Index))
		}
	case (kind == unix.RTM_NEWLINK || kind == unix.RTM_DELLINK) && len(m.Data) >= unix.SizeofIfInfomsg && m.Data[0] == unix.AF_UNSPEC:
		if kind == unix.RTM_DELLINK {
			w.table.gone(int(nl.DeserializeIfInfomsg(m.Data).Index))
		} else if l, ok := parseLink(m.Data); ok {
			w.table.is(l)
		}
	}
}

// passes says that a list failed for a reason that passes.
func passes(err error) bool {
	return slices.ContainsFunc([]error{netlink.ErrDumpInterrupted, unix.EBUSY, unix.EINTR, unix.EAGAIN, unix.ENOBUFS}, func(e error) bool { return errors.Is(err, e) })
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

// linkTable reports what differs from what was last said of each link.
type linkTable struct {
	known  map[int]Event // by index
	report func(Event)
}

func (t *linkTable) is(l link) {
	old, known := t.known[l.index]
	now := Event{Name: l.name, Index: l.index, Up: l.up}
	if now.Name == "" {
		now.Name = old.Name
	}
	if now == old || now.Name == "" {
		return
	}
	if known && old.Name != now.Name { // renamed
		t.gone(l.index)
	}
	t.known[l.index] = now
	t.report(now)
}

func (t *linkTable) readdressed(index int) {
	if e, known := t.known[index]; known {
		e.Addrs = true
		t.report(e)
	}
}

func (t *linkTable) gone(index int) {
	if e, known := t.known[index]; known {
		delete(t.known, index)
		e.Up, e.Gone = false, true
		t.report(e)
	}
}
