/* Measures what the machine itself allows: answers each frame at once, whatever it says. One thread, epoll.
 *
 * answerer TOPIC [BATCHES]
 *
 * Prints the port that it listens on. Each frame gets the answer to a produce of one batch (Produce v7), or, where there
 * is a file of batches, to a fetch (Fetch v4) with all of them, by sendfile. Ends with its standard input.
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
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BUFFER = 1 << 16, MAX_ANSWERS = 64 };

struct connection {
    int fd, head_bytes;
    uint8_t head[4];
    uint64_t left; /* of the frame that is being read */
    int owed;      /* answers to fetches */
    size_t sent;   /* of the first of them */
};

static uint8_t answers[MAX_ANSWERS * 512], buffer[BUFFER];
static size_t answer_size, file_size;
static int file = -1, epoll;

static void fail(const char *what) {
    fprintf(stderr, "answerer: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void build_answers(const char *topic) {
    size_t name = strlen(topic);
    uint8_t *p = answers;
    answer_size = 4 + 4 + 4 + 2 + name + 4 + 4 + 2 + 8 + 8 + 8 + 4;
    if (name > 200) { errno = ENAMETOOLONG; fail(topic); }
    if (file >= 0) { /* time, topics, name, partitions, index, error, two offsets, nothing aborted, size */
        answer_size = 4 + 4 + 4 + 4 + 2 + name + 4 + 4 + 2 + 8 + 8 + 4 + 4;
        uint64_t size = answer_size - 4 + file_size;
        for (int i = 0; i < 4; i++) p[i] = (uint8_t)(size >> (24 - 8 * i));
        for (int i = 0; i < 4; i++) p[answer_size - 4 + i] = (uint8_t)(file_size >> (24 - 8 * i));
        p[7] = p[15] = 1; /* correlation id, topics */
        p[17] = (uint8_t)name;
        memcpy(p + 18, topic, name);
        p[18 + name + 3] = 1; /* partitions */
        return;
    }
    p[3] = (uint8_t)(answer_size - 4);
    p[7] = 1;  /* correlation id */
    p[11] = 1; /* topics */
    p[13] = (uint8_t)name;
    memcpy(p + 14, topic, name);
    p[14 + name + 3] = 1; /* partitions */
    for (int i = 1; i < MAX_ANSWERS; i++) memcpy(answers + i * answer_size, answers, answer_size);
}

/* The number of frames that end within these bytes. */
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

/* Sends as much as the connection takes now. Returns 0 if it has failed. */
static int send_batches(struct connection *c) {
    while (c->owed) {
        off_t at = (off_t)(c->sent - answer_size);
        ssize_t n = c->sent < answer_size
            ? send(c->fd, answers + c->sent, answer_size - c->sent, MSG_NOSIGNAL | MSG_MORE)
            : sendfile(c->fd, file, &at, file_size - (size_t)at);
        if (n <= 0 && errno != EAGAIN) return 0;
        if (n <= 0) break;
        c->sent += (size_t)n;
        if (c->sent == answer_size + file_size) { c->sent = 0; c->owed--; }
    }
    struct epoll_event e = {.events = EPOLLIN | (c->owed ? EPOLLOUT : 0u), .data.ptr = c};
    epoll_ctl(epoll, EPOLL_CTL_MOD, c->fd, &e);
    return 1;
}

static int serve(struct connection *c) {
    ssize_t n = recv(c->fd, buffer, BUFFER, 0);
    if (n < 0 && errno == EAGAIN) return file < 0 || send_batches(c);
    if (n <= 0) return 0;
    if (file >= 0) { c->owed += count_frames(c, buffer, (size_t)n); return send_batches(c); }
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
    struct stat found;
    if (argc != 2 && argc != 3) { fprintf(stderr, "answerer: see the head of answerer.c\n"); return 2; }
    if (argc == 3 && ((file = open(argv[2], O_RDONLY)) < 0 || fstat(file, &found))) fail(argv[2]);
    if (argc == 3) file_size = (size_t)found.st_size;
    build_answers(argv[1]);
    epoll = epoll_create1(0);
    int listener = listen_anywhere(), one = 1;
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
