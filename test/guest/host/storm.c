#define _GNU_SOURCE
#include "host.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;
static atomic_int over;
static sigset_t usual;

// The thread begins with all signals blocked: before it has enlisted, the handler would take it for a foreign one.
static void *children(void *count)
{
    enlist();
    pthread_sigmask(SIG_SETMASK, &usual, NULL);
    while (!over) {
        char *const args[] = {"true", NULL};
        pid_t pid;
        int status;
        if (posix_spawn(&pid, "/bin/true", NULL, NULL, args, environ))
            fail("posix_spawn: %s", strerror(errno));
        while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
            ;
        if (!WIFEXITED(status) || WEXITSTATUS(status))
            fail("a child ended with status %#x", status);
        ++*(long *)count;
    }
    return NULL;
}

void storm(struct pair *p, int seconds, long itimer_us, size_t frame)
{
    const time_t end = time(NULL) + seconds;
    const struct itimerval each = {{0, itimer_us}, {0, itimer_us}}, never = {{0, 0}, {0, 0}};
    long count[2] = {0}, turns = 0, came = 0, foreign = 0;
    pthread_t threads[2];
    install(SIGPROF, 0, frame);
    install(SIGCHLD, 0, frame);
    setitimer(ITIMER_PROF, &each, NULL);
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &usual);
    for (int i = 0; i < 2; i++)
        pthread_create(&threads[i], NULL, children, &count[i]);
    pthread_sigmask(SIG_SETMASK, &usual, NULL);
    for (struct heard h[64]; time(NULL) < end; turns++) {
        if (p)
            pair_turn(p);
        for (ssize_t n; (n = read(heard_fd(), h, sizeof h)) > 0;)
            for (size_t i = 0; i < (size_t)n / sizeof *h; i++, came++)
                foreign += h[i].foreign;
    }
    over = 1;
    setitimer(ITIMER_PROF, &never, NULL);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    printf("storm: %ld turns, %ld signals, %ld on threads of others, %ld children\n", turns, came, foreign, count[0] + count[1]);
}
