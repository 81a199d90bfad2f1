// The reserve of threads. The plugin is linked with --wrap=pthread_create, so Go's calls come here: Go makes detached threads, and the
// core none. Each thread of Go was a spare one before, and more are made when few are left. When the process may have no further threads,
// Go takes what is there.
//
// If there is no room before Go starts, or a filter refuses a system call without which Go ends the process, its constructor is told that it
// has a first thread, and never runs. The shim refuses all calls.
#include "room.h"

#include "../backend/include/gr_thread.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstdint>
#include <cstring>
#include <pthread.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <ctime>
#include <unistd.h>
#include <utility>

using run_t = void *(*)(void *);
extern "C" int __real_pthread_create(pthread_t *, const pthread_attr_t *, run_t, void *);
extern "C" int __wrap_pthread_create(pthread_t *, const pthread_attr_t *, run_t, void *);

namespace {

// As many threads run Go at a time, at most (backend/host/rlimit.go, mostProcs), and as many more may be inside calls that block.
constexpr int MOST_PROCS = 8, BLOCKED = 8, OWN = 2; // of the runtime: its monitor, and the thread that makes others

// An engine starts with no fewer.
constexpr int LEAST = 6;

constexpr int PATIENCE = 6000; // naps of 10 ms

// Two engines with their rails take 2.1 GiB of addresses, of which 40 MiB are used: with 1.7 and 2 GiB shared memory or transfers failed. Go
// has 750 MiB for its tables, a thread 8 MiB of stack, and glibc 128 for the heap of each of the first few threads.
constexpr size_t SPACE = size_t{2} << 30;
constexpr size_t TABLES = size_t{750} << 20, ARENA = size_t{72} << 20;
// Stacks count as data, too. With 160 MiB Go ended the process, with 300 two engines ran.
constexpr size_t DATA = size_t{384} << 20;

// What a thread of the reserve waits for. The thread frees it.
struct Spare {
    Spare *next;
    pthread_t id;
    pthread_cond_t called;
    run_t run;
    void *arg;
};

pthread_mutex_t reserve_mu = PTHREAD_MUTEX_INITIALIZER;
Spare *first;
int spares;
char why[256]; // why Go was not started; empty: it was. Constant after room_before_go

void *spare(void *arg)
{
    Spare *me = static_cast<Spare *>(arg);
    pthread_setname_np(pthread_self(), "gorail-go");
    pthread_mutex_lock(&reserve_mu);
    while (!me->run)
        pthread_cond_wait(&me->called, &reserve_mu);
    pthread_mutex_unlock(&reserve_mu);
    const Spare job = *me;
    free(me);
    return job.run(job.arg);
}

// Makes one. Nobody waits until it runs: the loader's lock is held while the plugin is loaded, and a library may take it at the begin of
// each thread. The caller holds the lock, and has blocked all signals.
int make()
{
    Spare *s = static_cast<Spare *>(calloc(1, sizeof *s));
    if (!s)
        return ENOMEM;
    s->called = PTHREAD_COND_INITIALIZER;
    pthread_attr_t attr;
    gr_thread_attr(&attr); // Go asks for the default, and believes that there is no more
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    const int rc = __real_pthread_create(&s->id, &attr, spare, s);
    pthread_attr_destroy(&attr);
    if (rc) {
        free(s);
        return rc;
    }
    s->next = first;
    first = s;
    spares++;
    return 0;
}

// The caller holds the lock.
void call(run_t run, void *arg, pthread_t *id)
{
    Spare *s = first;
    first = s->next;
    spares--;
    if (id)
        *id = s->id;
    s->run = run;
    s->arg = arg;
    pthread_cond_signal(&s->called);
}

void *leave(void *) { return nullptr; }

int wanted()
{
    cpu_set_t set;
    const int cpus = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : MOST_PROCS;
    return std::min(cpus, MOST_PROCS) + BLOCKED + OWN;
}

// The bound of pids.max of the process's cgroup (version 2), or -1.
long most_pids()
{
    long most = -1;
    char line[512], path[600];
    FILE *groups = fopen("/proc/self/cgroup", "re");
    while (groups && fgets(line, sizeof line, groups))
        if (strncmp(line, "0::", 3) == 0) {
            line[strcspn(line, "\n")] = 0;
            snprintf(path, sizeof path, "/sys/fs/cgroup%s/pids.max", line + 3);
            if (FILE *f = fopen(path, "re")) {
                if (fscanf(f, "%ld", &most) != 1)
                    most = -1;
                fclose(f);
            }
        }
    if (groups)
        fclose(groups);
    return most;
}

void too_few(int rc, int have, int want, char *text, size_t size)
{
    rlimit nproc = {}, stack = {};
    getrlimit(RLIMIT_STACK, &stack);
    const size_t bytes = stack.rlim_cur == RLIM_INFINITY ? 8 << 20 : stack.rlim_cur;
    void *const trial = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (trial == MAP_FAILED) {
        snprintf(text, size, "the process can have %d more threads, and needs %d: there is no room for a stack of %zu KiB (%s); see ulimit -v, -d, -s and -l", have, want,
                 bytes >> 10, strerror(errno));
        return;
    }
    munmap(trial, bytes);
    getrlimit(RLIMIT_NPROC, &nproc);
    const long pids = most_pids();
    char processes[32] = "unlimited", pid[32] = "unlimited";
    if (nproc.rlim_cur != RLIM_INFINITY)
        snprintf(processes, sizeof processes, "%lu", static_cast<unsigned long>(nproc.rlim_cur));
    if (pids >= 0)
        snprintf(pid, sizeof pid, "%ld", pids);
    snprintf(text, size, "the process can have %d more threads (%s), and needs %d: raise the limit of processes (ulimit -u: %s; pids.max of the cgroup: %s)",
             have, strerror(rc), want, processes, pid);
}

// The limit of a kind of memory that leaves less than the plugin needs, in words.
bool leaves(int resource, const char *what, const char *flag, size_t used, size_t need)
{
    rlimit most = {};
    if (getrlimit(static_cast<__rlimit_resource>(resource), &most) || most.rlim_cur == RLIM_INFINITY || (most.rlim_cur >= used && most.rlim_cur - used >= need))
        return true;
    snprintf(why, sizeof why, "the limit of %s (ulimit %s: %lu MiB) leaves %zu MiB, and the plugin needs %zu: raise it", what, flag,
             static_cast<unsigned long>(most.rlim_cur >> 20), most.rlim_cur > used ? static_cast<size_t>(most.rlim_cur - used) >> 20 : 0, need >> 20);
    return false;
}

// Maps for a moment what Go maps when it starts: other bounds than limits forbid it, too (locked memory, overcommitment, the number of mappings).
bool trial(size_t bytes, int protection)
{
    void *const at = mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | (protection == PROT_NONE ? MAP_NORESERVE : 0), -1, 0);
    if (at == MAP_FAILED) {
        snprintf(why, sizeof why, "the system refuses %zu MiB of memory (%s): see ulimit -v, -d and -l, and vm.overcommit_memory", bytes >> 20, strerror(errno));
        return false;
    }
    munmap(at, bytes);
    return true;
}

bool space()
{
    unsigned long pages = 0, data = 0;
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    if (FILE *f = fopen("/proc/self/statm", "re")) {
        if (fscanf(f, "%lu %*u %*u %*u %*u %lu", &pages, &data) != 2)
            pages = data = 0;
        fclose(f);
    }
    return leaves(RLIMIT_AS, "addresses", "-v", pages * page, SPACE) && leaves(RLIMIT_DATA, "data", "-d", data * page, DATA) && trial(TABLES, PROT_NONE) &&
           trial(ARENA, PROT_READ | PROT_WRITE);
}

void close_if_open(int fd)
{
    if (fd >= 0)
        close(fd);
}

// Whether a system call that has failed is refused by a filter. A lack of descriptors passes, and is the engine's to report.
bool refused(bool failed, const char *call)
{
    if (!failed || (errno != EPERM && errno != EACCES && errno != ENOSYS))
        return false;
    snprintf(why, sizeof why, "%s fails (%s), and Go's runtime would end the process: allow it in the process's filter of system calls (seccomp, a container's profile)", call,
             strerror(errno));
    return true;
}

// Tries the system calls whose failure ends Go's runtime. test/guest TestRefusedCalls has the others that were tried.
bool calls()
{
    const int event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    bool none = refused(event < 0, "eventfd2");
    const int poll = epoll_create1(EPOLL_CLOEXEC);
    none = none || refused(poll < 0, "epoll_create1");
    epoll_event ready = {};
    if (event >= 0 && poll >= 0)
        none = none || refused(epoll_ctl(poll, EPOLL_CTL_ADD, event, &ready) != 0, "epoll_ctl") || refused(epoll_pwait(poll, &ready, 1, 0, nullptr) < 0, "epoll_pwait");
    const uint64_t one = 1;
    none = none || (event >= 0 && refused(write(event, &one, sizeof one) < 0, "write"));
    close_if_open(event);
    close_if_open(poll);
    stack_t stack;
    sigset_t mask;
    char byte;
    return !none && !refused(sigprocmask(SIG_BLOCK, nullptr, &mask) != 0, "rt_sigprocmask") && !refused(sigaltstack(nullptr, &stack) != 0, "sigaltstack") &&
           // without the call Go reads /dev/urandom
           !(getrandom(&byte, 1, GRND_NONBLOCK) < 0 && errno != ENOSYS && refused(true, "getrandom"));
}

class Locked {
public:
    Locked()
    {
        sigset_t all;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before_); // new threads inherit it
        pthread_mutex_lock(&reserve_mu);
    }
    ~Locked()
    {
        pthread_mutex_unlock(&reserve_mu);
        pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    }
    // Makes spare ones up to a number. 0, or the first error.
    int fill(int want)
    {
        int rc = 0;
        while (!rc && spares < want)
            rc = make();
        return rc;
    }

private:
    sigset_t before_;
};

} // namespace

namespace gorail {

void room_before_go() noexcept
{
    if (!space() || !calls())
        return;
    Locked lock;
    const int want = wanted();
    const int rc = lock.fill(want);
    if (!rc)
        return;
    too_few(rc, spares, want, why, sizeof why);
    while (first)
        call(leave, nullptr, nullptr);
}

const char *no_room() noexcept { return why[0] ? why : nullptr; }

const char *room_for_engine() noexcept
{
    static thread_local char text[sizeof why];
    Locked lock;
    const int rc = lock.fill(LEAST);
    if (!rc)
        return nullptr;
    too_few(rc, spares, LEAST, text, sizeof text);
    return text;
}

} // namespace gorail

int __wrap_pthread_create(pthread_t *id, const pthread_attr_t *attr, run_t run, void *arg)
{
    int detached = PTHREAD_CREATE_JOINABLE;
    if (attr)
        pthread_attr_getdetachstate(attr, &detached);
    if (detached != PTHREAD_CREATE_DETACHED)
        return __real_pthread_create(id, attr, run, arg);
    if (why[0]) {
        static bool told; // by the constructor of Go's half, which has no more to do
        if (id)
            *id = pthread_self();
        return std::exchange(told, true) ? EAGAIN : 0;
    }
    // Go ends the process for an error. So a lack of threads is waited for, as long as a host may take to get rid of others.
    for (int tries = 0;; tries++) {
        {
            Locked lock;
            const int rc = spares <= LEAST ? make() : 0;
            if (first) {
                call(run, arg, id);
                return 0;
            }
            if (tries == PATIENCE)
                return rc;
        }
        const timespec nap = {0, 10'000'000};
        nanosleep(&nap, nullptr);
    }
}
