// A program that uses signals as hosts of the plugin do. It runs with NIXL and without.
#ifndef GUEST_HOST_H
#define GUEST_HOST_H

#include <stddef.h>

// Prints a line and ends the process with status 3.
void fail(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

// ---- nixl.c ----

struct pair;
struct pair *pair_new(const char *library, const char *backend);
void pair_turn(struct pair *); // a WRITE and a READ
void pair_end(struct pair *);
int another(const char *backend); // makes one agent more: a NIXL status

// ---- handler.c ----

// The calling thread is the host's. The handler tells such threads from others.
void enlist(void);
// Installs the handler. It uses frame bytes of stack, and says to a pipe what has come.
void install(int sig, int on_stack, size_t frame);
struct heard {
    int sig;
    int foreign; // a thread that has not enlisted took it
};
int heard_fd(void); // each read gives whole structs

// ---- faults.c ----

// Makes the CPU raise SIGBUS, SIGFPE or SIGSEGV. With catch_faults the handler jumps back, and the call returns.
void fault(int sig);
void catch_faults(int sig, int on_stack);
// A handler of a further layer of the host: it jumps back from fault_of_own, and calls the handler that was there before for others.
void catch_own(int sig);
void fault_of_own(int sig);
// Calls a function of the plugin, at an offset in its file's memory, that stores to its argument, which is NULL. Returns its status.
int store_to_nothing(const char *plugin, unsigned long offset);

// ---- room.c ----

// Limits of the process. what: "addresses", MiB in all; "threads", of a user of its own, so root alone can set that.
void limit(const char *what, unsigned long most);

// ---- storm.c ----

// Signals in plenty beside transfers: SIGPROF each itimer_us, and children of two threads. SIGCHLD has a handler.
void storm(struct pair *, int seconds, long itimer_us, size_t frame);

// ---- threads.c ----

// Threads with small stacks that make a turn each, and end. It says how the process's addresses have grown meanwhile.
void short_threads(struct pair *, int count, size_t stack);

#endif
