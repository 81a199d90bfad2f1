// The reserve of threads. The plugin is linked with --wrap=pthread_create, so Go's calls come here: Go makes detached threads, and the
// core none. Each thread of Go was a spare one before, and more are made when few are left. When the process may have no further threads,
// Go takes what is there.
//
// If there is no room before Go starts, its constructor is told that it has a first thread, and never runs. The shim refuses all calls.
#include "room.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

using run_t = void *(*)(void *);
extern "C" int __real_pthread_create(pthread_t *, const pthread_attr_t *, run_t, void *);
extern "C" int __wrap_pthread_create(pthread_t *, const pthread_attr_t *, run_t, void *);

namespace {

// As many threads run Go at a time, at most (package rlimit, mostProcs), and as many more may be inside calls that block.
constexpr int MOST_PROCS = 8, BLOCKED = 8, OWN = 2; // of the runtime: its monitor, and the thread that makes others
// An engine starts with no fewer.
constexpr int LEAST = 6;

// Two engines with their rails take 2.1 GiB of addresses, of which 40 MiB are used: with 1.7 and 2 GiB shared memory or transfers failed. Go
// has 750 MiB for its tables, a thread 8 MiB of stack, and glibc 128 for the heap of each of the first few threads.
constexpr size_t SPACE = size_t{2} << 30;

struct Spare {
    Spare *next;
    pthread_t id;
    pthread_cond_t called;
    run_t run;
    void *arg;
};

pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t parked = PTHREAD_COND_INITIALIZER;
Spare *first;
int spares, starting;
char why[256]; // no room; empty: room

void *spare(void *)
{
    Spare me = {};
    me.id = pthread_self();
    me.called = PTHREAD_COND_INITIALIZER;
    pthread_setname_np(me.id, "gorail-go");
    pthread_mutex_lock(&mu);
    me.next = first;
    first = &me;
    spares++;
    starting--;
    pthread_cond_broadcast(&parked);
    while (!me.run)
        pthread_cond_wait(&me.called, &mu);
    pthread_mutex_unlock(&mu);
    return me.run(me.arg);
}

// The caller holds the lock, and has blocked all signals.
int make()
{
    pthread_attr_t attr;
    pthread_t id;
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    const int rc = __real_pthread_create(&id, &attr, spare, nullptr);
    pthread_attr_destroy(&attr);
    starting += rc == 0;
    return rc;
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
    rlimit nproc = {};
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

bool space()
{
    rlimit as = {};
    unsigned long pages = 0;
    if (getrlimit(RLIMIT_AS, &as) || as.rlim_cur == RLIM_INFINITY)
        return true;
    if (FILE *f = fopen("/proc/self/statm", "re")) {
        if (fscanf(f, "%lu", &pages) != 1)
            pages = 0;
        fclose(f);
    }
    const size_t used = pages * static_cast<size_t>(sysconf(_SC_PAGESIZE));
    if (as.rlim_cur >= used && as.rlim_cur - used >= SPACE)
        return true;
    snprintf(why, sizeof why, "the limit of addresses (ulimit -v: %lu MiB) leaves %zu MiB, and the plugin needs %zu: raise it",
             static_cast<unsigned long>(as.rlim_cur >> 20), as.rlim_cur > used ? static_cast<size_t>(as.rlim_cur - used) >> 20 : 0, SPACE >> 20);
    return false;
}

class Locked {
public:
    Locked()
    {
        sigset_t all;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before_); // new threads inherit it
        pthread_mutex_lock(&mu);
    }
    ~Locked()
    {
        pthread_mutex_unlock(&mu);
        pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    }
    // Makes spare ones up to a number. 0, or the first error.
    int fill(int want)
    {
        int rc = 0;
        while (!rc && spares + starting < want)
            rc = make();
        while (starting > 0)
            pthread_cond_wait(&parked, &mu);
        return rc;
    }

private:
    sigset_t before_;
};

} // namespace

namespace gorail {

void room_before_go() noexcept
{
    if (!space())
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
    if (why[0])
        return 0;
    Locked lock;
    if (spares <= LEAST)
        (void)make();
    while (!first && starting > 0)
        pthread_cond_wait(&parked, &mu);
    if (!first)
        return EAGAIN;
    call(run, arg, id);
    return 0;
}
