// Package walls starts a process of a test inside namespaces of its own, as a container runtime does: pid, ipc, mount, uts
// and cgroup, optionally user. The network namespace is that of the thread that starts the process.
//
// The program calls MaybeEnter before anything else. Container.Attr and Container.Setenv make a new process of the program
// (package subprocess) enter its namespaces there: it mounts its own /proc, /tmp, /run and /dev/shm, and the folders of the
// host that it shares. Then it executes the program again, as process 1 of its pid namespace. So the processes of two
// containers have equal process numbers. Namespaces and mounts end with the process.
package walls

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// envEnter has the Container that a new process enters.
const envEnter = "GORAIL_TEST_CONTAINER"

// flags are the namespaces of every container.
const flags = syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS | syscall.CLONE_NEWCGROUP

// Mount is a folder of the host at a place in the container, as a hostPath volume is.
type Mount struct {
	Host, At string
	ReadOnly bool
	Full     bool // a file system without room for a file, instead of the host's folder
}

// Users is a user namespace. It maps its root to a user and group of the host, and maps no other user.
type Users struct {
	Root     int
	Rootless bool // that user makes the namespaces: see DropRoot
}

// Container says which walls a process has.
type Container struct {
	Name    string   // host name
	Mounts  []Mount  // in a /tmp and a /run that are otherwise empty
	UID     int      // user and group of the process, as the container sees them
	Users   *Users   // nil: the user namespace of the thread that starts the process
	Command []string // what the process executes, with a path; nil: this program again
}

// Attr are the attributes of a process that is started in the container.
func (c *Container) Attr() *syscall.SysProcAttr {
	a := &syscall.SysProcAttr{Cloneflags: flags}
	if c.Users != nil {
		a.Cloneflags |= syscall.CLONE_NEWUSER
		a.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: c.Users.Root, Size: 1}}
		a.GidMappings = a.UidMappings
		a.GidMappingsEnableSetgroups = !c.Users.Rootless
		a.Credential = &syscall.Credential{NoSetGroups: c.Users.Rootless}
	}
	return a
}

// Setenv is the environment variable of such a process.
func (c *Container) Setenv() string {
	b, _ := json.Marshal(c) // has no type that fails
	return envEnter + "=" + string(b)
}

// Possible returns an error if the machine forbids the namespaces of a container.
func (c *Container) Possible() error {
	probe := exec.Command("true")
	probe.SysProcAttr = c.Attr()
	if err := probe.Run(); err != nil {
		return fmt.Errorf("cannot make the namespaces of a container: %w", err)
	}
	return nil
}

// DropRoot makes the calling thread, and the processes that it starts, those of an ordinary user without capabilities. The
// caller has locked the thread, which must end with its goroutine.
func DropRoot(user int) error {
	id := uintptr(user)
	none := []uint32{0}
	for _, call := range [][4]uintptr{
		{unix.SYS_SETGROUPS, 0, uintptr(unsafe.Pointer(&none[0])), 0},
		{unix.SYS_SETRESGID, id, id, id},
		{unix.SYS_SETRESUID, id, id, id}, // the raw call changes this thread alone
	} {
		if _, _, e := unix.RawSyscall(call[0], call[1], call[2], call[3]); e != 0 {
			return os.NewSyscallError("change of user", e)
		}
	}
	runtime.KeepAlive(none)
	// A change of user takes this from the whole process. Without it root owns the child's uid_map in /proc.
	return os.NewSyscallError("prctl", unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0))
}

// MaybeEnter enters the container and does not return, if the process was started for one.
func MaybeEnter() {
	text, ok := os.LookupEnv(envEnter)
	if !ok {
		return
	}
	var c Container
	err := json.Unmarshal([]byte(text), &c)
	if err == nil {
		err = c.enter()
	}
	fmt.Fprintln(os.Stderr, "container:", err)
	os.Exit(2)
}

// enter makes the mounts and executes the program again.
func (c *Container) enter() error {
	if os.Getpid() != 1 {
		return errors.New("not process 1 of a pid namespace")
	}
	runtime.LockOSThread()
	self, err := os.Open("/proc/self/exe") // its folder may be hidden below
	if err != nil {
		return err
	}
	if err := c.mount(); err != nil {
		return err
	}
	if err := unix.Sethostname([]byte(c.Name)); err != nil {
		return os.NewSyscallError("sethostname", err)
	}
	if err := c.becomeUser(); err != nil {
		return err
	}
	if err := os.Unsetenv(envEnter); err != nil {
		return err
	}
	if len(c.Command) > 0 {
		return syscall.Exec(c.Command[0], c.Command, os.Environ())
	}
	return syscall.Exec(fmt.Sprintf("/proc/self/fd/%d", self.Fd()), os.Args, os.Environ())
}

// becomeUser drops capabilities, then root. Only the calling thread loses the capabilities.
func (c *Container) becomeUser() error {
	if err := dropRights(); err != nil {
		return err
	}
	if c.UID == 0 {
		return nil
	}
	if c.Users == nil {
		if err := syscall.Setgroups(nil); err != nil {
			return os.NewSyscallError("setgroups", err)
		}
	}
	if err := syscall.Setgid(c.UID); err != nil {
		return os.NewSyscallError("setgid", err)
	}
	return os.NewSyscallError("setuid", syscall.Setuid(c.UID))
}
