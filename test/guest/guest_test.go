package guest

import (
	"debug/elf"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"gorail/test/skip"
	"gorail/test/testenv"
)

// times is how often each signal is sent to a process.
const times = 3

// rounds are the signals of a process each. One that may end or stop it has a process of its own.
func rounds(how string) (out [][]int) {
	var together []int
	for sig := 1; sig <= 64; sig++ {
		switch {
		case sig == 9, sig == 19, sig == 32, sig == 33: // KILL, STOP, and glibc's own
		case how == Default:
			out = append(out, []int{sig})
		default:
			together = append(together, sig)
		}
	}
	if together != nil {
		out = append(out, together)
	}
	return out
}

// run sends the signals of a round to a host, and returns what came of each, and how the host ended.
func run(t *testing.T, path, backend string, c Case, signals []int) map[string]string {
	t.Helper()
	h := Start(t, path, backend, c, signals...)
	got := map[string]string{}
	for n := range times {
		for _, sig := range signals {
			if _, ended := got["end"]; ended {
				return got
			}
			what := h.Send(sig, c.How)
			key := fmt.Sprint(sig, " ", n)
			if c.How == Default { // it may answer before the thread that took the signal has ended it
				key = fmt.Sprint(sig)
			}
			got[key] = what
			if what == "silent" || h.cmd.ProcessState != nil {
				got["end"] = what
			}
		}
	}
	got["end"] = h.End()
	if h.stops > 0 {
		got["stopped"] = "yes"
	}
	return got
}

// cases are the rows of the matrix, or those of the short form.
func cases(short bool) (out []Case) {
	for _, how := range []string{Blocked, Awaited, Handler, OnStack, Ignored, Default} {
		for _, before := range []bool{true, false} {
			for _, busy := range []bool{true, false} {
				if short && (!busy || how == Default && before) {
					continue
				}
				out = append(out, Case{How: how, Before: before, Busy: busy, Frame: 60_000})
			}
		}
	}
	return out
}

// Each signal does to a process with the plugin what it does to the same process without: blocked and read, handled, ignored and by
// default, set before the plugin is loaded and after, beside transfers and without. The host's handler runs on the host's threads only,
// with a frame of 60,000 bytes.
func TestSignals(t *testing.T) {
	env := testenv.Need(t)
	path := Build(t)
	for _, c := range cases(testing.Short()) {
		t.Run(c.String(), func(t *testing.T) {
			t.Parallel()
			for _, signals := range rounds(c.How) {
				if testing.Short() && c.How == Default && signals[0] > 34 {
					continue
				}
				want := run(t, path, "", c, signals)
				assert.Equal(t, want, run(t, path, env.Backend, c, signals), "signals %v", signals)
			}
		})
	}
}

// SIGPROF a thousand times a second, and children of two threads, whose SIGCHLD has a handler without SA_ONSTACK, beside transfers. All
// signals come to threads of the host. GORAIL_TEST_STORM is the length, such as 20m.
func TestSignalStorm(t *testing.T) {
	t.Parallel()
	env := testenv.Need(t)
	length := 30 * time.Second
	if testing.Short() {
		length = 3 * time.Second
	}
	if text := os.Getenv("GORAIL_TEST_STORM"); text != "" {
		var err error
		length, err = time.ParseDuration(text)
		require.NoError(t, err)
	}
	path := Build(t)
	for _, frame := range []int{200, 60_000} {
		t.Run(strconv.Itoa(frame), func(t *testing.T) {
			t.Parallel()
			out, err := output(t, path, env.Backend, "storm", strconv.Itoa(int(length.Seconds())), "1000", strconv.Itoa(frame))
			require.NoError(t, err, out)
			require.Contains(t, out, " 0 on threads of others")
			t.Log(out)
		})
	}
}

// A fault of the host's own code ends it by that signal, or comes to its handler, as without the plugin: also after a handler has jumped
// away.
func TestHostFaults(t *testing.T) {
	t.Parallel()
	env := testenv.Need(t)
	path := Build(t)
	for _, how := range []string{Default, "jump", "jumponstack"} {
		for _, before := range []bool{true, false} {
			for _, sig := range []syscall.Signal{syscall.SIGBUS, syscall.SIGFPE, syscall.SIGSEGV} {
				c := Case{How: how, Before: before, Busy: true}
				t.Run(fmt.Sprintf("%v/%d", c, sig), func(t *testing.T) {
					t.Parallel()
					got := func(backend string) (out []string) {
						h := Start(t, path, backend, c, int(sig))
						for range times {
							_, _ = fmt.Fprintf(h.in, "fault %d\n", sig)
							if out = append(out, h.line()); out[len(out)-1] != "back" {
								return out
							}
						}
						return append(out, h.End())
					}
					want := []string{"back", "back", "back", "ended with status 0"}
					if how == Default {
						want = []string{fmt.Sprint("ended by signal ", int(sig))}
					}
					require.Equal(t, want, got(""))
					require.Equal(t, want, got(env.Backend))
				})
			}
		}
	}
}

// A nil pointer of Go code is a panic, and the call answers with an error. The host lives on, also after faults of its own, which come to its
// handler, and to the plugin's by another one that it installs later.
func TestGoFaults(t *testing.T) {
	t.Parallel()
	env := testenv.Need(t)
	name := testenv.PluginFile(env.Backend)
	file, err := elf.Open(filepath.Join(env.PluginDir, name))
	require.NoError(t, err)
	defer file.Close()
	symbols, err := file.Symbols()
	require.NoError(t, err)
	i := slices.IndexFunc(symbols, func(s elf.Symbol) bool { return s.Name == "gorail_version" })
	require.GreaterOrEqual(t, i, 0, "%s has no symbols", name)
	out, err := output(t, Build(t), env.Backend, "panic", name, fmt.Sprint(symbols[i].Value), "0")
	require.NoError(t, err, out)
	require.Equal(t, 2, strings.Count(out, "status -"), out)
	require.Contains(t, out, "caught 3 and 5")
}

// Where the process has no room for the plugin's threads or addresses, no backend is made, with a line that says which limit, and the
// process lives. A limit of threads that is reached later ends no transfer: all threads that Go may need are there.
func TestNoRoom(t *testing.T) {
	t.Parallel()
	env := testenv.Need(t)
	path := Build(t)
	for what, want := range map[string]string{"addresses 900": "ulimit -v: 900 MiB", "threads 8": "ulimit -u: 8;", "later 1": "another: status -"} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			what, most, _ := strings.Cut(what, " ")
			if what != "addresses" && os.Geteuid() != 0 {
				t.Skip("only root can take a user of its own")
			}
			out, err := output(t, path, env.Backend, "room", what, most, "0")
			require.Contains(t, out, want)
			if what == "later" {
				require.NoError(t, err, out)
				return
			}
			require.Contains(t, out, "GR-1081")
			require.ErrorContains(t, err, "exit status 3", out) // the program's own: create_backend failed
			require.Contains(t, out, "create_backend: NIXL status -")
		})
	}
}

// Without these calls Go's runtime ends its process.
var needed = map[string]int{"eventfd2": unix.SYS_EVENTFD2, "epoll_create1": unix.SYS_EPOLL_CREATE1, "epoll_ctl": unix.SYS_EPOLL_CTL,
	"epoll_pwait": unix.SYS_EPOLL_PWAIT, "getrandom": unix.SYS_GETRANDOM, "sigaltstack": unix.SYS_SIGALTSTACK, "rt_sigprocmask": unix.SYS_RT_SIGPROCMASK, "write": unix.SYS_WRITE}

// A filter that ends the process, or refuses futex or rseq, is not survived: the kernel or the C library ends it.
var others = map[string]int{"accept4": unix.SYS_ACCEPT4, "bind": unix.SYS_BIND, "brk": unix.SYS_BRK, "clock_gettime": unix.SYS_CLOCK_GETTIME,
	"clock_nanosleep": unix.SYS_CLOCK_NANOSLEEP, "clone3": unix.SYS_CLONE3, "connect": unix.SYS_CONNECT, "dup": unix.SYS_DUP, "fallocate": unix.SYS_FALLOCATE,
	"fchmod": unix.SYS_FCHMOD, "fcntl": unix.SYS_FCNTL, "fstat": unix.SYS_FSTAT, "fstatfs": unix.SYS_FSTATFS, "ftruncate": unix.SYS_FTRUNCATE,
	"getdents64": unix.SYS_GETDENTS64, "getpid": unix.SYS_GETPID, "getrusage": unix.SYS_GETRUSAGE, "getsockname": unix.SYS_GETSOCKNAME,
	"getsockopt": unix.SYS_GETSOCKOPT, "gettid": unix.SYS_GETTID, "ioctl": unix.SYS_IOCTL, "listen": unix.SYS_LISTEN, "lseek": unix.SYS_LSEEK, "madvise": unix.SYS_MADVISE,
	"memfd_create": unix.SYS_MEMFD_CREATE, "mincore": unix.SYS_MINCORE, "mmap": unix.SYS_MMAP, "mprotect": unix.SYS_MPROTECT, "munmap": unix.SYS_MUNMAP,
	"nanosleep": unix.SYS_NANOSLEEP, "newfstatat": unix.SYS_NEWFSTATAT, "openat": unix.SYS_OPENAT, "pidfd_open": unix.SYS_PIDFD_OPEN, "pipe2": unix.SYS_PIPE2,
	"ppoll": unix.SYS_PPOLL, "prctl": unix.SYS_PRCTL, "prlimit64": unix.SYS_PRLIMIT64, "process_vm_readv": unix.SYS_PROCESS_VM_READV, "read": unix.SYS_READ,
	"readlinkat": unix.SYS_READLINKAT, "rt_sigaction": unix.SYS_RT_SIGACTION, "sched_getaffinity": unix.SYS_SCHED_GETAFFINITY, "sched_yield": unix.SYS_SCHED_YIELD,
	"sendmsg": unix.SYS_SENDMSG, "sendto": unix.SYS_SENDTO, "setsockopt": unix.SYS_SETSOCKOPT, "shutdown": unix.SYS_SHUTDOWN, "socket": unix.SYS_SOCKET,
	"tgkill": unix.SYS_TGKILL, "unlinkat": unix.SYS_UNLINKAT}

// A filter refuses one system call with EPERM or ENOSYS before the plugin is loaded. Without some calls Go's runtime ends its process: then no backend is
// made, with a line that names the call. Without others transfers go on, or a call of NIXL's fails. No process dies.
func TestRefusedCalls(t *testing.T) {
	t.Parallel()
	env := testenv.Need(t)
	path := Build(t)
	refuse := func(t *testing.T, number int, errno unix.Errno) (string, error) {
		t.Helper()
		t.Parallel()
		return output(t, path, env.Backend, "room", "refused", fmt.Sprint(number|int(errno)<<16), "0")
	}
	for _, errno := range []unix.Errno{unix.EPERM, unix.ENOSYS} {
		for call, number := range needed {
			if errno == unix.ENOSYS && call == "getrandom" { // Go reads /dev/urandom
				continue
			}
			t.Run(fmt.Sprint(call, " ", errno), func(t *testing.T) {
				out, err := refuse(t, number, errno)
				require.ErrorContains(t, err, "exit status 3", out) // the program's own: create_backend failed
				if call == "write" {                                // no line can be written
					return
				}
				require.Contains(t, out, fmt.Sprintf("cannot run: %s fails (%s)", call, message(errno)))
				require.Contains(t, out, "GR-1081")
			})
		}
		for call, number := range others {
			if testing.Short() && number%5 != 0 {
				continue
			}
			t.Run(fmt.Sprint(call, " ", errno), func(t *testing.T) {
				out, err := refuse(t, number, errno)
				if err != nil {
					require.ErrorContains(t, err, "exit status 3", out)
				}
				require.NotContains(t, out, "fatal error")
			})
		}
	}
	for _, call := range []int{unix.SYS_FSTAT, unix.SYS_FSTATFS, unix.SYS_FTRUNCATE, unix.SYS_FALLOCATE, unix.SYS_MEMFD_CREATE} {
		t.Run(fmt.Sprint("no shared memory ", call), func(t *testing.T) {
			out, err := refuse(t, call, unix.EPERM)
			require.NoError(t, err, out)
			require.Contains(t, out, "another: status 0")
			require.Contains(t, out, "level=WARN msg=\"rail not used")
		})
	}
}

// message is the C library's text.
func message(errno unix.Errno) string {
	if errno == unix.ENOSYS {
		return "Function not implemented"
	}
	return "Operation not permitted"
}

// TestSmallFiles: a host whose files may not grow (RLIMIT_FSIZE, as batch systems set it) lives: no call of the plugin raises SIGXFSZ. Shared memory, whose
// memory files are such files, is left out with a warning that names the limit. A log file and a file of counters at the limit end nothing.
func TestSmallFiles(t *testing.T) {
	t.Parallel()
	env := testenv.Need(t)
	path := Build(t)
	for _, most := range []int{0, 1000, 3 << 20} {
		t.Run(fmt.Sprint(most), func(t *testing.T) {
			t.Parallel()
			out, err := output(t, path, env.Backend, "room", "files", fmt.Sprint(most), "0")
			require.NoError(t, err, out)
			require.Contains(t, out, "another: status 0")
			require.Contains(t, out, "raise the limit with ulimit -f")
			dir := t.TempDir()
			out, err = outputWith(t, []string{"GORAIL_LOG=debug", "GORAIL_LOG_FILE=" + dir + "/log", "GORAIL_STATS_FILE=" + dir + "/stats"}, path, env.Backend,
				"room", "files", fmt.Sprint(most), "0")
			require.NoError(t, err, out)
			require.Contains(t, out, "another: status 0")
		})
	}
}

// Without /proc, shared memory is left out with a warning, and peers of this host are reached by the network.
func TestNoProc(t *testing.T) {
	t.Parallel()
	skip.UnlessRoot(t, "a mount namespace")
	env := testenv.Need(t)
	out, err := output(t, Build(t), env.Backend, "room", "proc", "0", "0")
	require.NoError(t, err, out)
	require.Contains(t, out, "another: status 0")
	require.Contains(t, out, `level=WARN msg="fabric not used"`)
	require.Contains(t, out, "is /proc mounted?")
}

// Threads, as docs/host.md has them: Go's and those in reserve, one that polls for each agent, and copiers. A busy process has no more.
func TestThreads(t *testing.T) {
	env := testenv.Need(t)
	path := Build(t)
	for _, busy := range []bool{false, true} {
		h := Start(t, path, env.Backend, Case{How: Default, Busy: busy}, 1)
		got := map[string]int{}
		require.Eventually(t, func() bool { // a thread has its creator's name until it runs
			clear(got)
			names, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/comm", h.cmd.Process.Pid))
			require.NoError(t, err)
			for _, name := range names {
				if b, err := os.ReadFile(name); err == nil {
					got[strings.TrimSpace(string(b))]++
				}
			}
			return got["gorail"] == 2
		}, patience, 10*time.Millisecond)
		t.Log(got)
		const starving = 8 // inside calls that wait for a processor: Go takes others for them
		require.LessOrEqual(t, got["gorail-go"], min(runtime.NumCPU(), 8)+10+starving)
		require.LessOrEqual(t, got["gorail-copy"], 4)
		require.Equal(t, "ended with status 0", h.End())
	}
}

// 2,200 threads of the host, with stacks of 32 KiB, make a WRITE and a READ each, and end. They leave nothing: a signal stack has 512 KiB.
func TestShortThreads(t *testing.T) {
	t.Parallel()
	env := testenv.Need(t)
	const threads = 2200
	out, err := output(t, Build(t), env.Backend, "threads", strconv.Itoa(threads), strconv.Itoa(32<<10), "0")
	require.NoError(t, err, out)
	var done, grown int
	_, err = fmt.Sscanf(out[max(0, strings.Index(out, "threads:")):], "threads: %d, addresses grew by %d MiB", &done, &grown)
	require.NoError(t, err, out)
	require.Equal(t, threads, done)
	require.Less(t, grown, 128, "MiB") // 1,100 if their signal stacks stayed
	t.Log(out)
}
