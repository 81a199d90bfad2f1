package ipc

import (
	"fmt"
	"strconv"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// meet opens the folder, listens, prints its place, connects to the place that it reads, and prints what it finds. The
// third argument is the policy.
func meet(args []string) error {
	h, err := hostIn(args[0], args[1])
	if err != nil {
		return err
	}
	s, err := h.Listen(16)
	if err != nil {
		return err
	}
	if s.NotInside != nil {
		return s.NotInside
	}
	fmt.Printf("%x\n", s.place.Append(nil))
	p := Proof{Place: *place(readLine()), At: 4096}
	to, err := p.Reach(h)
	fmt.Printf("%q pid %v error %q\n", to.Why, to.PID > 0, fmt.Sprint(err))
	if held, err := Dial(&p.Place, h.Folder); err == nil {
		defer held.Close()
	}
	var c *Conn
	for range 2 { // the first is Reach's
		if c, err = s.list[len(s.list)-1].anybody(); err != nil {
			return err
		}
	}
	who, pidfd, err := c.Identify(h.Users, Ticks())
	fmt.Printf("pid %v same %v pidfd %v error %q\n", who.PID > 0, who.SameUser, pidfd >= 0, fmt.Sprint(err))
	readLine()
	return nil
}

func hostIn(dir, users string) (*Host, error) {
	f, err := OpenFolder(dir)
	if err != nil {
		return nil, err
	}
	n, err := strconv.Atoi(users)
	return &Host{Folder: f, Users: Users(n)}, err
}

// TestWalls: processes behind walls of namespaces meet in a folder. The kernel names user and end of each, and the way
// is not direct.
func TestWalls(t *testing.T) {
	const (
		pods     = syscall.CLONE_NEWPID | syscall.CLONE_NEWNET | syscall.CLONE_NEWNS | syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS | unix.CLONE_NEWCGROUP
		pids     = "the peer is in another pid namespace"
		networks = "the peer is in another network namespace"
		clear    = `error "<nil>"`
	)
	mapped := func(uid int) []syscall.SysProcIDMap {
		return []syscall.SysProcIDMap{{ContainerID: 0, HostID: uid, Size: 1}}
	}
	own := func(uid int, flags uintptr) syscall.SysProcAttr { // a user namespace
		return syscall.SysProcAttr{Cloneflags: flags | syscall.CLONE_NEWUSER, UidMappings: mapped(uid), GidMappings: mapped(uid),
			GidMappingsEnableSetgroups: true, Credential: &syscall.Credential{Uid: 0, Gid: 0}}
	}
	bare := func(flags uintptr) syscall.SysProcAttr { return syscall.SysProcAttr{Cloneflags: flags} }
	bothLookups(t, func(t *testing.T) {
		f := openShared(t)
		for name, c := range map[string]struct {
			a, b         syscall.SysProcAttr
			users        Users
			finds, named string
		}{
			"pods":     {bare(pods), bare(pods), SameUser, fmt.Sprintf("%q pid false %s", pids, clear), fmt.Sprintf("pid false same true pidfd %v %s", !noPeerPIDFD, clear)},
			"networks": {bare(syscall.CLONE_NEWNET), bare(syscall.CLONE_NEWNET), SameUser, fmt.Sprintf("%q pid true %s", networks, clear), "pid true same true pidfd true " + clear},
			"one user in two user namespaces": {own(user, pods), own(user, pods), SameUser, fmt.Sprintf("%q pid false %s", pids, clear),
				fmt.Sprintf("pid false same true pidfd %v %s", !noPeerPIDFD, clear)},
			"other users": {own(user, pods), own(user+1, pods), SameUser, `"" pid false error "connect to the peer's socket in ` + f.Path() + `: permission denied (the peer's socket is for another user: run both as one user, or set local_peers=any-with-token at both)"`, ""},
			"any user": {own(user, pods), own(user+1, pods), AnyUser, fmt.Sprintf("%q pid false %s", pids, clear),
				fmt.Sprintf("pid false same false pidfd %v %s", !noPeerPIDFD, clear)},
		} {
			t.Run(name, func(t *testing.T) {
				what := fmt.Sprintf("meet %s %d", f.Path(), c.users)
				a, b := start(t, what, &c.a), start(t, what, &c.b)
				one, two := a.line(), b.line()
				a.say(two)
				b.say(one)
				require.Equal(t, c.finds, a.line())
				require.Equal(t, c.finds, b.line())
				if c.named != "" {
					require.Equal(t, c.named, a.line())
					require.Equal(t, c.named, b.line())
				}
			})
		}
	})
}

// TestPolicies: a process of another user is refused, unless both ends admit it. Then it is known as another user.
func TestPolicies(t *testing.T) {
	bothLookups(t, func(t *testing.T) {
		f := openShared(t)
		as := &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: user}}
		for name, c := range map[string]struct {
			ours, theirs Users
			says         string
		}{
			"neither": {SameUser, SameUser, "the peer runs as another user"},
			"they do": {SameUser, AnyUser, "another user"},
			"we do":   {AnyUser, SameUser, "the peer serves its own user alone: set local_peers=any-with-token there, too"},
			"both":    {AnyUser, AnyUser, ""},
		} {
			t.Run(name, func(t *testing.T) {
				h := &Host{Folder: f, Users: c.ours}
				s, err := h.Listen(16)
				require.NoError(t, err)
				defer s.Close()
				p := start(t, fmt.Sprintf("meet %s %d", f.Path(), c.theirs), as)
				proof := Proof{Place: *place(p.line()), At: 4096}
				for _, far := range []bool{false, true} {
					to := proof
					if far {
						to.Place = *elsewhere(&to.Place)
					}
					got, err := to.Reach(h)
					if c.says == "" {
						require.NoError(t, err)
						require.False(t, got.Direct)
						if !far {
							require.Equal(t, "the peer runs as another user", got.Why)
						}
						continue
					}
					require.ErrorIs(t, err, unix.EACCES)
				}
				if c.ours == AnyUser && c.theirs == SameUser {
					_, err := proof.Reach(h)
					require.ErrorContains(t, err, c.says)
				}
			})
		}
	})
}
