/* The law of this file: it knows contexts, not memory or kernels: only what waking a GPU needs.
 *
 * Opening and closing a context ends a ghost utilisation (state field ghost = 1), which is what a real context does to
 * a GPU that shows 100 % with nothing on it. Planted errors under "cuCtxCreate" / "cuDevicePrimaryCtxRetain" are CUDA codes.
 */
#include "fakemap.h"

#define API __attribute__((visibility("default"))) int

enum { OK = 0, INVALID_VALUE = 1, NOT_INITIALIZED = 3, UNAVAILABLE = 46, NO_DEVICE = 100, INVALID_DEVICE = 101,
       INVALID_CONTEXT = 201, NOT_READY = 802, MISMATCH = 803, UNKNOWN = 999 };

typedef struct { int slot; } Context;
static int started, users[FAKE_GPUS], retained[FAKE_GPUS];

API cuInit(unsigned flags)
{
    if (flags)
        return INVALID_VALUE;
    if (map_state())
        return NO_DEVICE;
    while (S->init_hang)
        nap();
    if (S->init_error)
        return S->init_error == 18 ? MISMATCH : UNKNOWN;
    if (!S->driver_loaded || !count_gpus())
        return NO_DEVICE;
    open_control();
    started = 1;
    return OK;
}

API cuDriverGetVersion(int *version)
{
    if (!version)
        return INVALID_VALUE;
    *version = S ? S->cuda_version : 0;
    return OK;
}

API cuDeviceGetCount(int *count)
{
    if (!started)
        return NOT_INITIALIZED;
    if (!count)
        return INVALID_VALUE;
    *count = (int)count_gpus();
    return OK;
}

API cuDeviceGet(int *device, int ordinal)
{
    if (!started)
        return NOT_INITIALIZED;
    if (!device)
        return INVALID_VALUE;
    if (ordinal < 0 || ordinal >= (int)count_gpus())
        return INVALID_DEVICE;
    *device = ordinal;
    return OK;
}

API cuDeviceGetByPCIBusId(int *device, const char *bus)
{
    if (!started)
        return NOT_INITIALIZED;
    if (!device || !bus)
        return INVALID_VALUE;
    FakeGpu *wanted = gpu_at_bus(bus);
    for (int i = 0; wanted && i < (int)count_gpus(); i++)
        if (nth_gpu((unsigned)i) == wanted) {
            *device = i;
            return OK;
        }
    return INVALID_DEVICE;
}

API cuDeviceGetPCIBusId(char *out, int size, int device)
{
    FakeGpu *g = started && device >= 0 ? nth_gpu((unsigned)device) : NULL;
    if (!g)
        return started ? INVALID_DEVICE : NOT_INITIALIZED;
    if (!out || size < 13)
        return INVALID_VALUE;
    snprintf(out, (size_t)size, "%s", g->bus_id + 4);
    return OK;
}

API cuDeviceGetName(char *out, int size, int device)
{
    FakeGpu *g = started && device >= 0 ? nth_gpu((unsigned)device) : NULL;
    if (!g)
        return started ? INVALID_DEVICE : NOT_INITIALIZED;
    if (!out || size < 1)
        return INVALID_VALUE;
    snprintf(out, (size_t)size, "%s", g->name);
    return OK;
}

static int enter(int device, const char *call, int *slot)
{
    int code;
    if (!started)
        return NOT_INITIALIZED;
    FakeGpu *g = device >= 0 ? nth_gpu((unsigned)device) : NULL;
    if (!g)
        return INVALID_DEVICE;
    while (g->hang)
        nap();
    if (planted(g->errors, call, &code)) {
        if (code)
            return code;
    } else if (g->lost || in_reset(g))
        return UNKNOWN;
    else if (g->reset_required)
        return UNAVAILABLE;
    else if (g->fabric_state == 1 || g->fabric_state == 2)
        return NOT_READY;
    *slot = (int)(g - S->gpus);
    users[*slot]++;
    open_gpu(g);
    return OK;
}

static void leave(int slot)
{
    if (--users[slot] > 0)
        return;
    close_gpu(slot);
    if (S->gpus[slot].ghost == 1)
        S->gpus[slot].ghost = 0;
}

API cuCtxCreate_v2(void **context, unsigned flags, int device)
{
    int slot, rc;
    (void)flags;
    if (!context)
        return INVALID_VALUE;
    if ((rc = enter(device, "cuCtxCreate", &slot)))
        return rc;
    Context *made = malloc(sizeof *made);
    made->slot = slot;
    *context = made;
    return OK;
}

API cuCtxDestroy_v2(void *context)
{
    if (!context)
        return INVALID_CONTEXT;
    leave(((Context *)context)->slot);
    free(context);
    return OK;
}

API cuDevicePrimaryCtxRetain(void **context, int device)
{
    static Context primary[FAKE_GPUS];
    int slot, rc;
    if (!context)
        return INVALID_VALUE;
    if ((rc = enter(device, "cuDevicePrimaryCtxRetain", &slot)))
        return rc;
    retained[slot]++;
    primary[slot].slot = slot;
    *context = &primary[slot];
    return OK;
}

static int release(int device)
{
    FakeGpu *g = started && device >= 0 ? nth_gpu((unsigned)device) : NULL;
    if (!g)
        return started ? INVALID_DEVICE : NOT_INITIALIZED;
    int slot = (int)(g - S->gpus);
    if (!retained[slot])
        return INVALID_CONTEXT;
    retained[slot]--;
    leave(slot);
    return OK;
}

API cuDevicePrimaryCtxRelease(int device) { return release(device); }
API cuDevicePrimaryCtxRelease_v2(int device) { return release(device); }
API cuCtxSynchronize(void) { return started ? OK : NOT_INITIALIZED; }

API cuGetErrorName(int code, const char **name)
{
    static const struct { int code; const char *name; } names[] = {
        {OK, "CUDA_SUCCESS"}, {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"}, {NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED"},
        {UNAVAILABLE, "CUDA_ERROR_DEVICE_UNAVAILABLE"}, {NO_DEVICE, "CUDA_ERROR_NO_DEVICE"},
        {INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE"}, {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT"},
        {NOT_READY, "CUDA_ERROR_SYSTEM_NOT_READY"}, {MISMATCH, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"},
        {2, "CUDA_ERROR_OUT_OF_MEMORY"}, {UNKNOWN, "CUDA_ERROR_UNKNOWN"}};
    if (!name)
        return INVALID_VALUE;
    *name = NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].code == code)
            *name = names[i].name;
    return *name ? OK : INVALID_VALUE;
}
