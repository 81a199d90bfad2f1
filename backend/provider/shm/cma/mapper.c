/* Posts leave tasks for the mapper, a goroutine (shm/mapper.go), without entering Go: they queue the task and signal
 * an eventfd. Posts and the mapper keep the last reason why GPU memory could not be reached. */
#include <stdio.h>
#include <unistd.h>

#include "cma.h"

#define TEXT(name, text) text,
static const char *const whys[] = {GR_GPU_WHYS(TEXT)};

void cma_note_error(cma_rail *rail, const char *what, int why, const gr_gpu_fault *fault)
{
    cma_mapper *m = &rail->mapper;
    const char *text = why >= 0 && why < GR_GPU_WHY_COUNT ? whys[why] : "unknown reason";
    pthread_mutex_lock(&m->mu);
    if (fault && fault->call)
        snprintf(m->last_error, sizeof(m->last_error), "%s: %s: %s%s%s", what, fault->call, text, fault->text[0] ? ": " : "", fault->text);
    else
        snprintf(m->last_error, sizeof(m->last_error), "%s: %s", what, text);
    pthread_mutex_unlock(&m->mu);
}

void cma_last_error(cma_rail *rail, char *to, size_t size)
{
    pthread_mutex_lock(&rail->mapper.mu);
    snprintf(to, size, "%s", rail->mapper.last_error);
    pthread_mutex_unlock(&rail->mapper.mu);
}

void cma_set_last_error(cma_rail *rail, const char *text)
{
    pthread_mutex_lock(&rail->mapper.mu);
    snprintf(rail->mapper.last_error, sizeof(rail->mapper.last_error), "%s", text);
    pthread_mutex_unlock(&rail->mapper.mu);
}

void cma_mapper_open(cma_mapper *m, int doorbell_fd)
{
    pthread_mutex_init(&m->mu, NULL);
    m->tail = &m->head;
    m->doorbell_fd = doorbell_fd;
}

void cma_mapper_add(cma_rail *rail, cma_task *task)
{
    cma_mapper *m = &rail->mapper;
    pthread_mutex_lock(&m->mu);
    task->next = NULL;
    *m->tail = task;
    m->tail = &task->next;
    m->asked++;
    pthread_mutex_unlock(&m->mu);
    (void)!write(m->doorbell_fd, &(uint64_t){1}, sizeof(uint64_t));
}

cma_task *cma_mapper_take(cma_rail *rail)
{
    cma_mapper *m = &rail->mapper;
    pthread_mutex_lock(&m->mu);
    cma_task *t = m->head;
    if (t)
        m->head = t->next;
    if (!m->head)
        m->tail = &m->head;
    pthread_mutex_unlock(&m->mu);
    return t;
}

uint64_t cma_mapper_asked(cma_rail *rail)
{
    pthread_mutex_lock(&rail->mapper.mu);
    uint64_t n = rail->mapper.asked;
    pthread_mutex_unlock(&rail->mapper.mu);
    return n;
}

void cma_mapper_close(cma_mapper *m) { pthread_mutex_destroy(&m->mu); }
