/* Who asks for descriptors of a GPU's memory. */
#define _GNU_SOURCE
#include <poll.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "world.h"

static int call(const lc_shares *of)
{
    struct sockaddr_un to = { .sun_family = AF_UNIX };
    int s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    memcpy(to.sun_path, of->name, of->name_len);
    CHECK(s >= 0);
    (void)!connect(s, (struct sockaddr *)&to, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + of->name_len));
    return s;
}

/* What comes for a question of one piece; 0: the caller was let go. */
static ssize_t ask_piece(int s, const uint8_t *token, uint64_t key)
{
    lc_given r;
    lc_want q = { .key = key, .n = 1 };
    struct pollfd p = { .fd = s, .events = POLLIN };
    memcpy(q.token, token, LC_TOKEN);
    if (send(s, &q, sizeof(q), MSG_NOSIGNAL) < 0) /* let go, or there is no room for it in the queue */
        return 0;
    CHECK(poll(&p, 1, LIMIT_S * 1000) == 1);
    ssize_t n = recv(s, &r, sizeof(r), 0);
    return n < 0 ? 0 : n;
}

/* Another user's process gets no descriptor, though it knows the token. One of ours that has shown it stays when many come who say nothing. */
void vram_callers(void)
{
    enum { CALLS = 200, USER = 54321 };
    struct {
        lc_shares shares;
        uint64_t key;
    } *told = mmap(NULL, sizeof(*told), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int go[2], status, last, s[CALLS];
    char c;
    CHECK(told != MAP_FAILED && pipe(go) == 0);
    pid_t child = geteuid() == 0 ? fork() : -1;
    if (child == 0) {
        CHECK(setgid(USER) == 0 && setuid(USER) == 0 && read(go[0], &c, 1) == 1);
        CHECK(ask_piece(call(&told->shares), told->shares.token, told->key) == 0);
        _exit(0);
    }
    end b = open_end(0);
    atomic_store(&b.rail->gpu, fake_driver());
    uint64_t key = fake_region(&b, 1, GR_GPU_SHARE_FDS, 200);
    if (child > 0) {
        told->key = key;
        memcpy(&told->shares, b.rail->shares, offsetof(lc_shares, share));
        CHECK(write(go[1], "g", 1) == 1 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    int mine = call(b.rail->shares);
    CHECK(ask_piece(mine, b.rail->shares->token, key) == sizeof(lc_given));
    for (int i = 0; i < CALLS; i++)
        s[i] = call(b.rail->shares);
    for (uint64_t stop = limit(); ask_piece(last = call(b.rail->shares), b.rail->shares->token, key) == 0; close(last)) /* behind those */
        CHECK(lc_now() < stop);
    CHECK(ask_piece(mine, b.rail->shares->token, key) == sizeof(lc_given));
    for (int i = 0; i < CALLS; i++)
        close(s[i]);
    close(mine);
    close(last);
    CHECK(lc_mr_close(b.rail, key) == 0);
    close_end(&b);
}
