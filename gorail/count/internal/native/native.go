// Package native has C for the tests of package count: it allocates in each way, and takes locks.
package native

/*
#define _GNU_SOURCE
#include <malloc.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

// keep keeps the compiler from leaving allocations out.
static __thread void *volatile keep;

static void use(void *p)
{
	keep = p;
	free(keep);
}

static void allocate(int n)
{
	for (int i = 0; i < n; i++) {
		void *p = NULL;
		use(malloc(10));
		use(calloc(2, 5));
		keep = malloc(3);
		use(realloc(keep, 300));
		use(strdup("of the C library"));
		use(aligned_alloc(64, 64));
		use(memalign(64, 64));
		if (posix_memalign(&p, 64, 64) == 0)
			use(p);
	}
}

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_rwlock_t rw = PTHREAD_RWLOCK_INITIALIZER;
static pthread_spinlock_t spin;

static int take(int kind)
{
	switch (kind) {
	case 0: return pthread_mutex_lock(&mutex);
	case 1: return pthread_rwlock_rdlock(&rw);
	case 2: return pthread_rwlock_wrlock(&rw);
	default: return pthread_spin_lock(&spin);
	}
}

static int give(int kind)
{
	switch (kind) {
	case 0: return pthread_mutex_unlock(&mutex);
	case 1:
	case 2: return pthread_rwlock_unlock(&rw);
	default: return pthread_spin_unlock(&spin);
	}
}

static void *other(void *kind)
{
	if (take(*(int *)kind) == 0)
		give(*(int *)kind);
	return NULL;
}

static void prepare(void) { pthread_spin_init(&spin, PTHREAD_PROCESS_PRIVATE); }

// held holds a lock until another thread has asked for it, and the count at has grown.
static void held(int kind, void *f, int size, int at)
{
	void (*look)(uint64_t *) = (void (*)(uint64_t *))f;
	pthread_t t;
	uint64_t before[size], now[size];
	int owner = kind == 1 ? 2 : kind; // a reader waits for a writer
	take(owner);
	look(before);
	if (pthread_create(&t, NULL, other, &kind) != 0)
		abort();
	do {
		sched_yield();
		look(now);
	} while (now[at] == before[at]);
	give(owner);
	pthread_join(t, NULL);
}
*/
import "C"

import "unsafe"

// Kinds is the number of allocations in a round of Allocate.
const Kinds = 8

// Allocate makes n rounds of allocations, and releases them.
func Allocate(n int) { C.allocate(C.int(n)) }

// Locks are the kinds of locks.
var Locks = []string{"mutex", "reader", "writer", "spin"}

func number(kind string) C.int {
	for i, k := range Locks {
		if k == kind {
			return C.int(i)
		}
	}
	panic(kind)
}

// Free takes a free lock n times.
func Free(kind string, n int) {
	C.prepare()
	for range n {
		C.take(number(kind))
		C.give(number(kind))
	}
}

// Held lets a second thread ask for a lock that the first one holds until that is counted: look writes size counts, the one at grows.
func Held(kind string, look unsafe.Pointer, size, at int) {
	C.held(number(kind), look, C.int(size), C.int(at))
}
