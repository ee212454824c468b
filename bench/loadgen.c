/* A load generator that is faster than the brokers it measures: one thread, epoll, batches made beforehand.
 *
 * loadgen produce HOST PORT TOPIC PARTITIONS CONNECTIONS DEPTH ACKS BATCH_FILE SECONDS
 * loadgen fetch   HOST PORT TOPIC PARTITIONS CONNECTIONS 1 MAX_BYTES TOTAL_BYTES SECONDS
 *
 * Connection i works on partition i % PARTITIONS and keeps DEPTH requests in flight (fetch: 1). Produce sends the
 * bytes of BATCH_FILE as they are (Produce v7), fetch follows the offsets of the batches that come (Fetch v4).
 * Prints one JSON object: requests, bytes, seconds, microseconds at p50 and p99. Ends with 1 at the first error.
 */
#include <arpa/inet.h>
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
#include <time.h>
#include <unistd.h>

enum { MAX_CONNECTIONS = 4096, MAX_DEPTH = 1024, MAX_SAMPLES = 1 << 22 };

struct connection {
    int fd, partition, in_flight, want_write;
    uint8_t *out;
    size_t out_size, out_sent, out_queued;
    uint8_t *in;
    size_t in_size, in_used;
    uint64_t started[MAX_DEPTH];
    unsigned head, tail;
    int64_t offset;
};

static struct connection connections[MAX_CONNECTIONS];
static uint32_t *samples;
static uint64_t sample_count, request_count, byte_count;
static int depth, is_fetch, partitions;
static const char *topic;

static void fail(const char *what) {
    fprintf(stderr, "loadgen: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void fail_code(const char *what, int code) {
    fprintf(stderr, "loadgen: %s %d\n", what, code);
    exit(1);
}

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

static uint8_t *put16(uint8_t *p, int v) { *p++ = (uint8_t)(v >> 8); *p++ = (uint8_t)v; return p; }
static uint8_t *put32(uint8_t *p, uint32_t v) { p = put16(p, (int)(v >> 16)); return put16(p, (int)(v & 0xffff)); }
static uint8_t *put64(uint8_t *p, uint64_t v) { p = put32(p, (uint32_t)(v >> 32)); return put32(p, (uint32_t)v); }
static uint8_t *put_string(uint8_t *p, const char *s) {
    size_t n = strlen(s);
    p = put16(p, (int)n);
    memcpy(p, s, n);
    return p + n;
}
static uint32_t get32(const uint8_t *p) {
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}
static int get16(const uint8_t *p) { return (int16_t)(p[0] << 8 | p[1]); }
static uint64_t get64(const uint8_t *p) { return (uint64_t)get32(p) << 32 | get32(p + 4); }

static uint8_t *put_header(uint8_t *p, int key, int version) {
    p = put16(p + 4, key);
    p = put16(p, version);
    p = put32(p, 1);
    return put_string(p, "loadgen");
}

static uint8_t *put_partition(uint8_t *p, int partition) {
    p = put32(p, 1);
    p = put_string(p, topic);
    p = put32(p, 1);
    return put32(p, (uint32_t)partition);
}

static void build_produce(struct connection *c, int acks, const uint8_t *batch, size_t size) {
    c->out = malloc(size + 512);
    uint8_t *p = put_header(c->out, 0, 7);
    p = put16(p, -1);
    p = put16(p, acks);
    p = put32(p, 30000);
    p = put_partition(p, c->partition);
    p = put32(p, (uint32_t)size);
    memcpy(p, batch, size);
    c->out_size = (size_t)(p - c->out) + size;
    put32(c->out, (uint32_t)(c->out_size - 4));
}

static void build_fetch(struct connection *c, uint32_t max_bytes) {
    if (!c->out) c->out = malloc(512);
    uint8_t *p = put_header(c->out, 1, 4);
    p = put32(p, (uint32_t)-1);
    p = put32(p, 500);
    p = put32(p, 1);
    p = put32(p, max_bytes);
    *p++ = 0;
    p = put_partition(p, c->partition);
    p = put64(p, (uint64_t)c->offset);
    p = put32(p, max_bytes);
    c->out_size = (size_t)(p - c->out);
    put32(c->out, (uint32_t)(c->out_size - 4));
}

static void send_more(struct connection *c, int epoll) {
    while (c->out_queued || c->in_flight < depth) {
        if (!c->out_queued) {
            c->out_queued = 1;
            c->out_sent = 0;
            c->started[c->tail++ % MAX_DEPTH] = now_ns();
            c->in_flight++;
        }
        ssize_t n = send(c->fd, c->out + c->out_sent, c->out_size - c->out_sent, MSG_NOSIGNAL);
        if (n < 0 && errno == EAGAIN) break;
        if (n < 0) fail("send");
        c->out_sent += (size_t)n;
        if (c->out_sent == c->out_size) c->out_queued = 0;
    }
    int want = c->out_queued != 0;
    if (want != c->want_write) {
        struct epoll_event e = {.events = EPOLLIN | (want ? EPOLLOUT : 0u), .data.ptr = c};
        epoll_ctl(epoll, EPOLL_CTL_MOD, c->fd, &e);
        c->want_write = want;
    }
}

static void take_produced(const uint8_t *p, size_t batch_size) {
    p += 4 + 4 + 4;
    p += 2 + get16(p);
    p += 4 + 4;
    int error = get16(p);
    if (error) fail_code("produce answered error", error);
    byte_count += batch_size;
}

static void take_fetched(struct connection *c, const uint8_t *p) {
    p += 4 + 4 + 4 + 4;
    p += 2 + get16(p);
    p += 4 + 4;
    int error = get16(p);
    if (error) fail_code("fetch answered error", error);
    p += 2 + 8 + 8;
    int32_t aborted = (int32_t)get32(p);
    p += 4 + (aborted > 0 ? 16 * aborted : 0);
    int32_t size = (int32_t)get32(p);
    const uint8_t *at = p + 4, *end = at + (size > 0 ? size : 0);
    while (end - at >= 61) {
        int64_t length = 12 + (int64_t)get32(at + 8);
        if (length > end - at) break;
        c->offset = (int64_t)(get64(at) + get32(at + 23) + 1);
        byte_count += (uint64_t)length;
        at += length;
    }
}

static void receive(struct connection *c, size_t batch_size, uint32_t max_bytes) {
    for (;;) {
        ssize_t n = recv(c->fd, c->in + c->in_used, c->in_size - c->in_used, 0);
        if (n == 0) { errno = ECONNRESET; fail("recv"); }
        if (n < 0 && errno == EAGAIN) return;
        if (n < 0) fail("recv");
        c->in_used += (size_t)n;
        size_t at = 0;
        while (c->in_used - at >= 4) {
            size_t frame = 4 + (size_t)get32(c->in + at);
            if (frame > c->in_size) fail_code("answer too large:", (int)frame);
            if (c->in_used - at < frame) break;
            uint64_t took = now_ns() - c->started[c->head++ % MAX_DEPTH];
            if (sample_count < MAX_SAMPLES) samples[sample_count++] = (uint32_t)(took / 1000);
            if (is_fetch) take_fetched(c, c->in + at); else take_produced(c->in + at, batch_size);
            request_count++;
            c->in_flight--;
            at += frame;
        }
        memmove(c->in, c->in + at, c->in_used - at);
        c->in_used -= at;
        if (at && is_fetch) { build_fetch(c, max_bytes); return; }
    }
}

static int compare(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

static int connect_to(const char *host, int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    if (inet_pton(AF_INET, host, &address.sin_addr) != 1) fail("address");
    int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address)) fail("connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    fcntl(fd, F_SETFL, O_NONBLOCK);
    return fd;
}

static uint8_t *read_file(const char *path, size_t *size) {
    FILE *f = fopen(path, "rb");
    if (!f) fail(path);
    fseek(f, 0, SEEK_END);
    *size = (size_t)ftell(f);
    rewind(f);
    uint8_t *data = malloc(*size);
    if (fread(data, 1, *size, f) != *size) fail(path);
    fclose(f);
    return data;
}

int main(int argc, char **argv) {
    if (argc != 11) { fprintf(stderr, "loadgen: see the head of loadgen.c\n"); return 2; }
    is_fetch = !strcmp(argv[1], "fetch");
    topic = argv[4];
    partitions = atoi(argv[5]);
    int count = atoi(argv[6]);
    depth = is_fetch ? 1 : atoi(argv[7]);
    if (count < 1 || count > MAX_CONNECTIONS || depth < 1 || depth > MAX_DEPTH || partitions < 1) {
        errno = EINVAL;
        fail("arguments");
    }
    uint32_t max_bytes = is_fetch ? (uint32_t)atol(argv[8]) : 0;
    uint64_t total = is_fetch ? strtoull(argv[9], 0, 10) : UINT64_MAX;
    size_t batch_size = 0;
    uint8_t *batch = is_fetch ? 0 : read_file(argv[9], &batch_size);
    samples = malloc(sizeof *samples * MAX_SAMPLES);
    int epoll = epoll_create1(0);
    for (int i = 0; i < count; i++) {
        struct connection *c = &connections[i];
        c->fd = connect_to(argv[2], atoi(argv[3]));
        c->partition = i % partitions;
        c->in_size = is_fetch ? max_bytes + (8u << 20) : 1u << 16;
        c->in = malloc(c->in_size);
        if (is_fetch) build_fetch(c, max_bytes); else build_produce(c, atoi(argv[8]), batch, batch_size);
        struct epoll_event e = {.events = EPOLLIN, .data.ptr = c};
        epoll_ctl(epoll, EPOLL_CTL_ADD, c->fd, &e);
    }
    uint64_t begin = now_ns(), end = begin + (uint64_t)(atof(argv[10]) * 1e9), now = begin;
    for (int i = 0; i < count; i++) send_more(&connections[i], epoll);
    while (now < end && byte_count < total) {
        struct epoll_event ready[256];
        int n = epoll_wait(epoll, ready, 256, 100);
        for (int i = 0; i < n; i++) {
            struct connection *c = ready[i].data.ptr;
            if (ready[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) receive(c, batch_size, max_bytes);
            send_more(c, epoll);
        }
        now = now_ns();
    }
    qsort(samples, sample_count, sizeof *samples, compare);
    double seconds = (double)(now - begin) / 1e9;
    printf("{\"requests\": %llu, \"bytes\": %llu, \"seconds\": %.3f, \"p50_us\": %u, \"p99_us\": %u}\n",
           (unsigned long long)request_count, (unsigned long long)byte_count, seconds,
           sample_count ? samples[sample_count / 2] : 0, sample_count ? samples[sample_count * 99 / 100] : 0);
    return 0;
}
