/* The thread that maps peers' memory and makes streams: calls of the driver that last milliseconds, in the order in which they were asked for. What
 * waits for a peer meanwhile holds up nobody. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "local.h"

#define TEXT(name, text) text,
static const char *const whys[] = { GR_GPU_WHYS(TEXT) };

void lc_trouble(lc_rail *rail, const char *what, int why, const gr_gpu_fault *fault)
{
    lc_mapper *m = &rail->mapper;
    const char *text = why >= 0 && why < GR_GPU_WHY_COUNT ? whys[why] : "unknown reason";
    pthread_mutex_lock(&m->mu);
    if (fault && fault->call)
        snprintf(m->trouble, sizeof(m->trouble), "%s: %s: %s%s%s", what, fault->call, text, fault->text[0] ? ": " : "", fault->text);
    else
        snprintf(m->trouble, sizeof(m->trouble), "%s: %s", what, text);
    pthread_mutex_unlock(&m->mu);
}

void lc_trouble_text(lc_rail *rail, char *to, size_t size)
{
    pthread_mutex_lock(&rail->mapper.mu);
    snprintf(to, size, "%s", rail->mapper.trouble);
    pthread_mutex_unlock(&rail->mapper.mu);
}

static void *work(void *arg)
{
    lc_rail *rail = arg;
    lc_mapper *m = &rail->mapper;
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL); /* signals are the application's */
    pthread_mutex_lock(&m->mu);
    for (;;) {
        lc_task *t = m->head;
        if (t) {
            m->head = t->next;
            if (!m->head)
                m->tail = &m->head;
            pthread_mutex_unlock(&m->mu);
            t->run(rail, t);
            pthread_mutex_lock(&m->mu);
            m->done++;
            pthread_cond_broadcast(&m->idle);
        } else if (m->stop) {
            break;
        } else if (m->parked) {
            pthread_mutex_unlock(&m->mu);
            lc_import_step(rail);
            pthread_mutex_lock(&m->mu);
        } else {
            pthread_cond_wait(&m->work, &m->mu);
        }
    }
    pthread_mutex_unlock(&m->mu);
    return NULL;
}

void lc_mapper_open(lc_mapper *m)
{
    pthread_mutex_init(&m->mu, NULL);
    pthread_cond_init(&m->work, NULL);
    pthread_cond_init(&m->idle, NULL);
    m->tail = &m->head;
}

int lc_mapper_add(lc_rail *rail, lc_task *task)
{
    lc_mapper *m = &rail->mapper;
    int rc = 0;
    pthread_mutex_lock(&m->mu);
    if (!m->up && (rc = -pthread_create(&m->thread, NULL, work, rail)) == 0)
        m->up = 1;
    if (!rc) {
        task->next = NULL;
        *m->tail = task;
        m->tail = &task->next;
        m->asked++;
        pthread_cond_signal(&m->work);
    }
    pthread_mutex_unlock(&m->mu);
    return rc;
}

void lc_mapper_wait(lc_rail *rail)
{
    lc_mapper *m = &rail->mapper;
    pthread_mutex_lock(&m->mu);
    for (uint64_t all = m->asked; m->done < all;)
        pthread_cond_wait(&m->idle, &m->mu);
    pthread_mutex_unlock(&m->mu);
}

void lc_mapper_close(lc_rail *rail)
{
    lc_mapper *m = &rail->mapper;
    pthread_mutex_lock(&m->mu);
    m->stop = 1;
    pthread_cond_signal(&m->work);
    pthread_mutex_unlock(&m->mu);
    if (m->up)
        pthread_join(m->thread, NULL);
    pthread_cond_destroy(&m->work);
    pthread_cond_destroy(&m->idle);
    pthread_mutex_destroy(&m->mu);
}
