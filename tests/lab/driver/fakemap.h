/* The law of this file: what both fake libraries do with the state file stands here once, and nothing else does. */
#ifndef FAKEMAP_H
#define FAKEMAP_H

#include "fakestate.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static FakeState *S;
static ino_t mapped_inode;
static int ctl_fd = -1, gpu_fd[FAKE_GPUS];

/* A blocked call sleeps in small steps and looks again, so that a release from outside ends it at once. */
static void nap(void)
{
    struct timespec step = {0, 20 * 1000 * 1000};
    nanosleep(&step, NULL);
}

/* Old mappings stay: handles given out before point into them. */
static int map_state(void)
{
    const char *path = getenv("FAKENVML_STATE");
    struct stat st;
    int fd = open(path && *path ? path : "/run/fakenvml/state", O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return -1;
    /* The BAR of a device is a power of two, so a state may lie in more room than it needs; the header says its size. */
    if (fstat(fd, &st) || st.st_size < (off_t)sizeof(FakeState)) {
        close(fd);
        return -1;
    }
    if (!S || mapped_inode != st.st_ino) {
        FakeState *map = mmap(NULL, sizeof(FakeState), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (map == MAP_FAILED || memcmp(map->magic, FAKE_MAGIC, 8) || map->layout != FAKE_LAYOUT || map->size != sizeof(FakeState)) {
            close(fd);
            return -1;
        }
        S = map;
        mapped_inode = st.st_ino;
    }
    close(fd);
    return 0;
}

static int open_node(const char *name, int number)
{
    const char *dev = getenv("FAKENVML_DEV");
    char path[512];
    if (number < 0)
        snprintf(path, sizeof path, "%s/%s", dev && *dev ? dev : "/dev", name);
    else
        snprintf(path, sizeof path, "%s/%s%d", dev && *dev ? dev : "/dev", name, number);
    return open(path, O_RDWR | O_CLOEXEC);
}

static void open_control(void)
{
    static int first = 1;
    if (first)
        for (int i = 0; i < FAKE_GPUS; i++)
            gpu_fd[i] = -1;
    first = 0;
    if (ctl_fd < 0)
        ctl_fd = open_node("nvidiactl", -1);
}

static void open_gpu(FakeGpu *g)
{
    int slot = (int)(g - S->gpus);
    if (gpu_fd[slot] < 0)
        gpu_fd[slot] = open_node("nvidia", (int)g->minor);
}

static void close_gpu(int slot)
{
    if (gpu_fd[slot] >= 0)
        close(gpu_fd[slot]);
    gpu_fd[slot] = -1;
}

static void close_nodes(void)
{
    for (int i = 0; i < FAKE_GPUS; i++)
        close_gpu(i);
    if (ctl_fd >= 0)
        close(ctl_fd);
    ctl_fd = -1;
}

/* "nvmlDeviceGetMemoryInfo" stands for every version of the call, "..._v2" for that one. */
static int same_call(const char *entry, const char *call)
{
    size_t n = strlen(entry);
    if (!strcmp(entry, call))
        return 1;
    return !strncmp(entry, call, n) && call[n] == '_' && call[n + 1] == 'v';
}

/* 1 and *code when the table speaks about this call. */
static int planted(FakeError *table, const char *call, int *code)
{
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < FAKE_ERRORS; i++) {
            FakeError *e = &table[i];
            if (!e->call[0] || (pass ? strcmp(e->call, "*") != 0 : !same_call(e->call, call)))
                continue;
            *code = e->code;
            if (e->left && --e->left == 0)
                memset(e, 0, sizeof *e);
            return 1;
        }
    return 0;
}

static uint64_t used_mib(const FakeGpu *g)
{
    uint64_t sum = g->idle_mib + g->leak_mib, most = g->total_mib - g->reserved_mib;
    for (int i = 0; i < FAKE_ROWS; i++)
        if (g->rows[i].pid)
            sum += g->rows[i].mib;
    return sum < most ? sum : most;
}

static unsigned count_gpus(void)
{
    unsigned n = 0;
    for (int i = 0; i < FAKE_GPUS; i++)
        n += S->gpus[i].present != 0;
    return n;
}

static FakeGpu *nth_gpu(unsigned index)
{
    for (int i = 0; i < FAKE_GPUS; i++)
        if (S->gpus[i].present && index-- == 0)
            return &S->gpus[i];
    return NULL;
}

/* "00000000:01:00.0", "0000:01:00.0" and "01:00.0" name the same function. */
static int same_bus(const char *a, const char *b)
{
    unsigned x[4] = {0}, y[4] = {0};
    if (sscanf(a, "%x:%x:%x.%x", &x[0], &x[1], &x[2], &x[3]) < 3 && (x[0] = 0, sscanf(a, "%x:%x.%x", &x[1], &x[2], &x[3])) < 2)
        return 0;
    if (sscanf(b, "%x:%x:%x.%x", &y[0], &y[1], &y[2], &y[3]) < 3)
        return 0;
    return !memcmp(x, y, sizeof x);
}

static FakeGpu *gpu_at_bus(const char *bus)
{
    for (int i = 0; i < FAKE_GPUS; i++)
        if (S->gpus[i].present && same_bus(bus, S->gpus[i].bus_id))
            return &S->gpus[i];
    return NULL;
}

/* A reset whose process was killed is not in progress any more, whatever the state file still says. */
static int in_reset(const FakeGpu *g)
{
    return g->resetting_pid && kill((pid_t)g->resetting_pid, 0) == 0;
}

#endif
