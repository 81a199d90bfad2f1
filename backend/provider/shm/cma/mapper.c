/* What posts ask of the mapper, which is Go's (shm/mapper.go): they leave a task and ring, without Go. And why memory could not be reached, which posts
 * find, too. */
#include <stdio.h>
#include <unistd.h>

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

void lc_trouble_set(lc_rail *rail, const char *text)
{
    pthread_mutex_lock(&rail->mapper.mu);
    snprintf(rail->mapper.trouble, sizeof(rail->mapper.trouble), "%s", text);
    pthread_mutex_unlock(&rail->mapper.mu);
}

void lc_mapper_open(lc_mapper *m, int bell_fd)
{
    pthread_mutex_init(&m->mu, NULL);
    m->tail = &m->head;
    m->bell_fd = bell_fd;
}

void lc_mapper_add(lc_rail *rail, lc_task *task)
{
    lc_mapper *m = &rail->mapper;
    pthread_mutex_lock(&m->mu);
    task->next = NULL;
    *m->tail = task;
    m->tail = &task->next;
    m->asked++;
    pthread_mutex_unlock(&m->mu);
    (void)!write(m->bell_fd, &(uint64_t){ 1 }, sizeof(uint64_t));
}

lc_task *lc_mapper_take(lc_rail *rail)
{
    lc_mapper *m = &rail->mapper;
    pthread_mutex_lock(&m->mu);
    lc_task *t = m->head;
    if (t)
        m->head = t->next;
    if (!m->head)
        m->tail = &m->head;
    pthread_mutex_unlock(&m->mu);
    return t;
}

uint64_t lc_mapper_asked(lc_rail *rail)
{
    pthread_mutex_lock(&rail->mapper.mu);
    uint64_t n = rail->mapper.asked;
    pthread_mutex_unlock(&rail->mapper.mu);
    return n;
}

void lc_mapper_close(lc_mapper *m) { pthread_mutex_destroy(&m->mu); }
