/* What the machine itself allows: answers each frame at once, whatever it says. One thread, epoll.
 *
 * answerer TOPIC
 *
 * Prints the port that it listens on. Each frame gets the answer to a produce of one batch (Produce v7). Ends with its
 * standard input.
 */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BUFFER = 1 << 16, MAX_ANSWERS = 64 };

struct connection {
    int fd, head_bytes;
    uint8_t head[4];
    uint64_t left; /* of the frame that is being read */
};

static uint8_t answers[MAX_ANSWERS * 512], buffer[BUFFER];
static size_t answer_size;

static void fail(const char *what) {
    fprintf(stderr, "answerer: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void build_answers(const char *topic) {
    size_t name = strlen(topic);
    uint8_t *p = answers;
    answer_size = 4 + 4 + 4 + 2 + name + 4 + 4 + 2 + 8 + 8 + 8 + 4;
    if (name > 200) { errno = ENAMETOOLONG; fail(topic); }
    p[3] = (uint8_t)(answer_size - 4);
    p[7] = 1;  /* correlation id */
    p[11] = 1; /* topics */
    p[13] = (uint8_t)name;
    memcpy(p + 14, topic, name);
    p[14 + name + 3] = 1; /* partitions */
    for (int i = 1; i < MAX_ANSWERS; i++) memcpy(answers + i * answer_size, answers, answer_size);
}

/* How many frames end within these bytes. */
static int count_frames(struct connection *c, const uint8_t *p, size_t size) {
    int count = 0;
    while (size) {
        if (!c->left) {
            c->head[c->head_bytes++] = *p++;
            size--;
            if (c->head_bytes < 4) continue;
            c->head_bytes = 0;
            c->left = (uint64_t)c->head[0] << 24 | (uint64_t)c->head[1] << 16 | (uint64_t)c->head[2] << 8 | c->head[3];
            continue;
        }
        size_t step = size < c->left ? size : (size_t)c->left;
        p += step;
        size -= step;
        c->left -= step;
        count += !c->left;
    }
    return count;
}

static int serve(struct connection *c) {
    ssize_t n = recv(c->fd, buffer, BUFFER, 0);
    if (n < 0 && errno == EAGAIN) return 1;
    if (n <= 0) return 0;
    for (int left = count_frames(c, buffer, (size_t)n); left > 0; left -= MAX_ANSWERS) {
        size_t size = answer_size * (size_t)(left < MAX_ANSWERS ? left : MAX_ANSWERS);
        if (send(c->fd, answers, size, MSG_NOSIGNAL) != (ssize_t)size) return 0;
    }
    return 1;
}

static int listen_anywhere(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, size) || listen(fd, 1024)) fail("listen");
    getsockname(fd, (struct sockaddr *)&address, &size);
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    return fd;
}

int main(int argc, char **argv) {
    if (argc != 2) { fprintf(stderr, "answerer: see the head of answerer.c\n"); return 2; }
    build_answers(argv[1]);
    int epoll = epoll_create1(0), listener = listen_anywhere(), one = 1;
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = 0};
    epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &e);
    e.data.ptr = &listener;
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, 0, &e)) fail("standard input");
    for (;;) {
        struct epoll_event ready[256];
        int n = epoll_wait(epoll, ready, 256, -1);
        for (int i = 0; i < n; i++) {
            struct connection *c = ready[i].data.ptr;
            if (ready[i].data.ptr == &listener) return 0;
            if (!c) {
                c = calloc(1, sizeof *c);
                c->fd = accept(listener, 0, 0);
                setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
                fcntl(c->fd, F_SETFL, O_NONBLOCK);
                e.data.ptr = c;
                epoll_ctl(epoll, EPOLL_CTL_ADD, c->fd, &e);
            } else if (!serve(c)) {
                close(c->fd);
                free(c);
            }
        }
    }
}
