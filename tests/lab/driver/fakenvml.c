/* The law of this file: it answers the NVML ABI from the state file alone and decides nothing itself.
 *
 * The structs are written from the public ABI (sizes and field order), no NVIDIA header is needed. Every call that
 * needs the GPU goes through ask(): hang first (a real call blocks in the kernel before it can fail), then the
 * planted error, then lost, reset in progress and reset required. Identity strings come from the driver's cache and
 * skip all but the planted error.
 *
 * Build variants: -DFAKE_R470 leaves out what R470 did not export; -DSTRIDE=32 writes the 32 byte process entries of
 * 535.43 to 535.86.
 */
#include "fakemap.h"

#include <ctype.h>
#include <stddef.h>

#ifndef STRIDE
#define STRIDE 24
#endif

#define API __attribute__((visibility("default"))) int
#define MIB(n) ((unsigned long long)(n) << 20)

enum { OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7,
       DRIVER_NOT_LOADED = 9, TIMEOUT = 10, GPU_IS_LOST = 15, RESET_REQUIRED = 16, ARGUMENT_VERSION_MISMATCH = 25,
       DEPRECATED = 26, UNKNOWN = 999 };

typedef FakeGpu *Dev;
static int refs;

/* ---- gates ------------------------------------------------------------------------------------------------------ */

static int driver_branch(void) { return atoi(S->driver_version); }

static int known(Dev d)
{
    char *at = (char *)d, *base = S ? (char *)S->gpus : NULL;
    return base && at >= base && at < base + sizeof S->gpus && (size_t)(at - base) % sizeof(FakeGpu) == 0;
}

static int cached(Dev d, const char *call)
{
    int code;
    if (!refs)
        return UNINITIALIZED;
    if (!known(d))
        return INVALID_ARGUMENT;
    return planted(d->errors, call, &code) ? code : OK;
}

static int ask(Dev d, const char *call)
{
    int code;
    if (!refs)
        return UNINITIALIZED;
    if (!known(d))
        return INVALID_ARGUMENT;
    while (d->hang)
        nap();
    if (planted(d->errors, call, &code))
        return code;
    if (d->lost || !d->present)
        return GPU_IS_LOST;
    if (in_reset(d))
        return UNKNOWN;
    return d->reset_required ? RESET_REQUIRED : OK;
}

static int ask_system(const char *call)
{
    int code;
    if (!refs)
        return UNINITIALIZED;
    return planted(S->errors, call, &code) ? code : OK;
}

#define CACHED(d) do { int rc_ = cached(d, __func__); if (rc_) return rc_; } while (0)
#define ASK(d) do { int rc_ = ask(d, __func__); if (rc_) return rc_; } while (0)
#define ASK_SYSTEM() do { int rc_ = ask_system(__func__); if (rc_) return rc_; } while (0)
#define NEED(p) do { if (!(p)) return INVALID_ARGUMENT; } while (0)

static int text(char *out, unsigned size, const char *from)
{
    NEED(out);
    if (strlen(from) + 1 > size)
        return INSUFFICIENT_SIZE;
    memset(out, 0, size);
    memcpy(out, from, strlen(from));
    return OK;
}

/* ---- library ---------------------------------------------------------------------------------------------------- */

API nvmlInitWithFlags(unsigned flags)
{
    int code;
    (void)flags;
    if (map_state())
        return DRIVER_NOT_LOADED;
    while (S->init_hang)
        nap();
    if (planted(S->errors, __func__, &code) && code)
        return code;
    if (S->init_error)
        return S->init_error;
    if (!S->driver_loaded)
        return DRIVER_NOT_LOADED;
    open_control();
    refs++;
    return OK;
}

API nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
API nvmlInit(void) { return nvmlInitWithFlags(0); }

API nvmlShutdown(void)
{
    if (!refs)
        return UNINITIALIZED;
    if (--refs == 0)
        close_nodes();
    return OK;
}

__attribute__((visibility("default"))) const char *nvmlErrorString(int code)
{
    switch (code) {
    case OK: return "The operation was successful";
    case UNINITIALIZED: return "Uninitialized";
    case INVALID_ARGUMENT: return "Invalid Argument";
    case NOT_SUPPORTED: return "Not Supported";
    case NO_PERMISSION: return "Insufficient Permissions";
    case NOT_FOUND: return "Not Found";
    case INSUFFICIENT_SIZE: return "Insufficient Size";
    case 8: return "Insufficient External Power";
    case DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case TIMEOUT: return "Timeout";
    case 13: return "Function Not Found";
    case GPU_IS_LOST: return "GPU is lost";
    case RESET_REQUIRED: return "GPU requires reset";
    case 18: return "Driver/library version mismatch";
    case 19: return "In use by another client";
    default: return "Unknown Error";
    }
}

API nvmlSystemGetDriverVersion(char *out, unsigned n) { ASK_SYSTEM(); return text(out, n, S->driver_version); }
API nvmlSystemGetNVMLVersion(char *out, unsigned n) { ASK_SYSTEM(); return text(out, n, S->nvml_version); }
API nvmlSystemGetCudaDriverVersion(int *v) { ASK_SYSTEM(); NEED(v); *v = S->cuda_version; return OK; }
API nvmlSystemGetCudaDriverVersion_v2(int *v) { ASK_SYSTEM(); NEED(v); *v = S->cuda_version; return OK; }

API nvmlSystemGetProcessName(unsigned pid, char *out, unsigned n)
{
    char path[64], name[1024] = "";
    ASK_SYSTEM();
    NEED(out);
    snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        ssize_t got = read(fd, name, sizeof name - 1);
        name[got > 0 ? got : 0] = 0;
        close(fd);
    }
    for (int i = 0; !name[0] && i < FAKE_GPUS * FAKE_ROWS; i++) {
        FakeRow *r = &S->gpus[i / FAKE_ROWS].rows[i % FAKE_ROWS];
        if (r->pid == pid)
            strncpy(name, r->name, sizeof r->name - 1);
    }
    if (!name[0])
        return NOT_FOUND;
    if (strlen(name) + 1 > n)
        return INSUFFICIENT_SIZE;
    strcpy(out, name);
    return OK;
}

/* ---- handles ---------------------------------------------------------------------------------------------------- */

static int attach(FakeGpu *g, const char *call, Dev *out)
{
    int code;
    if (!g)
        return NOT_FOUND;
    while (g->hang >= 2)
        nap();
    if (planted(g->errors, "handle", &code) || planted(g->errors, call, &code)) {
        if (code)
            return code;
    } else if (g->lost)
        return GPU_IS_LOST;
    open_gpu(g);
    *out = g;
    return OK;
}

API nvmlDeviceGetCount_v2(unsigned *n) { ASK_SYSTEM(); NEED(n); *n = count_gpus(); return OK; }
API nvmlDeviceGetCount(unsigned *n) { ASK_SYSTEM(); NEED(n); *n = count_gpus(); return OK; }

API nvmlDeviceGetHandleByIndex_v2(unsigned index, Dev *out)
{
    ASK_SYSTEM();
    NEED(out);
    return index < count_gpus() ? attach(nth_gpu(index), __func__, out) : INVALID_ARGUMENT;
}

API nvmlDeviceGetHandleByUUID(const char *uuid, Dev *out)
{
    ASK_SYSTEM();
    NEED(out && uuid);
    for (int i = 0; i < FAKE_GPUS; i++)
        if (S->gpus[i].present && !strcmp(uuid, S->gpus[i].uuid))
            return attach(&S->gpus[i], __func__, out);
    return NOT_FOUND;
}

API nvmlDeviceGetHandleByPciBusId_v2(const char *bus, Dev *out)
{
    ASK_SYSTEM();
    NEED(out && bus);
    return attach(gpu_at_bus(bus), __func__, out);
}

API nvmlDeviceGetIndex(Dev d, unsigned *out)
{
    CACHED(d);
    NEED(out);
    *out = 0;
    for (FakeGpu *g = S->gpus; g < d; g++)
        *out += g->present != 0;
    return OK;
}

/* ---- identity --------------------------------------------------------------------------------------------------- */

API nvmlDeviceGetName(Dev d, char *out, unsigned n) { CACHED(d); return text(out, n, d->name); }
API nvmlDeviceGetUUID(Dev d, char *out, unsigned n) { CACHED(d); return text(out, n, d->uuid); }
API nvmlDeviceGetVbiosVersion(Dev d, char *out, unsigned n) { CACHED(d); return text(out, n, d->vbios); }
API nvmlDeviceGetMinorNumber(Dev d, unsigned *out) { CACHED(d); NEED(out); *out = d->minor; return OK; }

API nvmlDeviceGetSerial(Dev d, char *out, unsigned n)
{
    CACHED(d);
    return d->serial[0] ? text(out, n, d->serial) : NOT_SUPPORTED;
}

typedef struct {
    char legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
} PciInfo;

API nvmlDeviceGetPciInfo_v3(Dev d, PciInfo *out)
{
    unsigned domain = 0, bus = 0, device = 0, function = 0;
    CACHED(d);
    NEED(out);
    memset(out, 0, sizeof *out);
    sscanf(d->bus_id, "%x:%x:%x.%x", &domain, &bus, &device, &function);
    snprintf(out->legacy, sizeof out->legacy, "%04X:%02X:%02X.%X", domain & 0xffff, bus & 0xff, device & 0x1f, function & 7);
    snprintf(out->bus_id, sizeof out->bus_id, "%s", d->bus_id);
    out->domain = domain;
    out->bus = bus;
    out->device = device;
    out->device_id = d->pci_device_id;
    out->subsystem_id = d->pci_subsystem_id;
    return OK;
}

/* ---- memory ----------------------------------------------------------------------------------------------------- */

typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } MemoryV2;

/* R510 changed v1: total became the physical size and `used` took in what the driver reserves. */
API nvmlDeviceGetMemoryInfo(Dev d, Memory *out)
{
    ASK(d);
    NEED(out);
    int modern = driver_branch() >= 510;
    out->total = MIB(modern ? d->total_mib : d->total_mib - d->reserved_mib);
    out->used = MIB(used_mib(d) + (modern ? d->reserved_mib : 0));
    out->free = out->total - out->used;
    return OK;
}

#ifndef FAKE_R470
API nvmlDeviceGetMemoryInfo_v2(Dev d, MemoryV2 *out)
{
    ASK(d);
    NEED(out);
    if (out->version != (sizeof *out | 2u << 24))
        return ARGUMENT_VERSION_MISMATCH;
    out->total = MIB(d->total_mib);
    out->reserved = MIB(d->reserved_mib);
    out->used = MIB(used_mib(d));
    out->free = out->total - out->reserved - out->used;
    return OK;
}
#endif

API nvmlDeviceGetBAR1MemoryInfo(Dev d, Memory *out)
{
    ASK(d);
    NEED(out);
    out->total = MIB(d->bar1_total_mib);
    out->used = MIB(d->bar1_used_mib);
    out->free = out->total - out->used;
    return OK;
}

/* ---- processes -------------------------------------------------------------------------------------------------- */

/* offset of each field inside an entry is the same in v2 and v3; v1 ends after the memory */
static int list(Dev d, unsigned kind, unsigned *count, char *out, size_t stride)
{
    unsigned room, n = 0;
    NEED(count);
    room = *count;
    for (int i = 0; i < FAKE_ROWS; i++) {
        FakeRow row = d->rows[i];
        if (!row.pid || row.kind != kind)
            continue;
        if (out && n < room) {
            char *at = out + n * stride;
            unsigned long long bytes = MIB(row.mib), none = 0;
            memset(at, 0, stride);
            memcpy(at, &row.pid, 4);
            memcpy(at + 8, &bytes, 8);
            if (stride >= 24) {
                memcpy(at + 16, &row.gi, 4);
                memcpy(at + 20, &row.ci, 4);
            }
            if (stride >= 32)
                memcpy(at + 24, &none, 8);
        }
        n++;
    }
    *count = n;
    return n == 0 || (out && n <= room) ? OK : INSUFFICIENT_SIZE;
}

#define PROCESSES(name, kind, stride) \
    API name(Dev d, unsigned *count, void *out) { ASK(d); return list(d, kind, count, out, stride); }

PROCESSES(nvmlDeviceGetComputeRunningProcesses, 0, 16)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses, 1, 16)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses, 2, 16)
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v2, 0, 24)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2, 1, 24)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v2, 2, 24)
#ifndef FAKE_R470
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3, 0, STRIDE)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3, 1, STRIDE)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3, 2, STRIDE)

typedef struct { unsigned pid; unsigned long long used; unsigned gi, ci; unsigned long long protectedUsed; } Detail;
typedef struct { unsigned version, mode, count; Detail *list; } DetailList;

API nvmlDeviceGetRunningProcessDetailList(Dev d, DetailList *io)
{
    unsigned n = 0, room;
    ASK(d);
    NEED(io);
    if (io->version != (sizeof *io | 1u << 24))
        return ARGUMENT_VERSION_MISMATCH;
    if (io->mode > 3)
        return INVALID_ARGUMENT;
    room = io->list ? io->count : 0;
    for (int i = 0; i < FAKE_ROWS; i++) {
        FakeRow row = d->rows[i];
        if (!row.pid || (io->mode != 3 && row.kind != io->mode))
            continue;
        if (n < room)
            io->list[n] = (Detail){row.pid, MIB(row.mib), row.gi, row.ci, 0};
        n++;
    }
    io->count = n;
    return n <= room ? OK : INSUFFICIENT_SIZE;
}
#endif

/* ---- utilisation, modes, link ----------------------------------------------------------------------------------- */

typedef struct { unsigned gpu, memory; } Utilization;

API nvmlDeviceGetUtilizationRates(Dev d, Utilization *out)
{
    ASK(d);
    NEED(out);
    if (d->mig_current)
        return NOT_SUPPORTED;
    out->gpu = d->ghost ? 100 : d->util_gpu;
    out->memory = d->util_mem;
    return OK;
}

/* Persistence is a flag of the driver, not of the device: it answers, and can be switched off, on a GPU that needs a reset. */
API nvmlDeviceGetPersistenceMode(Dev d, unsigned *out)
{
    int rc = ask(d, __func__);
    if (rc && rc != RESET_REQUIRED)
        return rc;
    NEED(out);
    *out = d->persistence;
    return OK;
}

API nvmlDeviceSetPersistenceMode(Dev d, unsigned mode)
{
    int rc = ask(d, __func__);
    if (rc && rc != RESET_REQUIRED)
        return rc;
    if (geteuid())
        return NO_PERMISSION;
    NEED(mode <= 1);
    d->persistence = mode;
    return OK;
}

API nvmlDeviceGetMigMode(Dev d, unsigned *current, unsigned *pending)
{
    ASK(d);
    NEED(current && pending);
    *current = d->mig_current;
    *pending = d->mig_pending;
    return d->mig_supported ? OK : NOT_SUPPORTED;
}

API nvmlDeviceGetMaxMigDeviceCount(Dev d, unsigned *out) { ASK(d); NEED(out); *out = d->mig_supported ? 7 : 0; return OK; }

API nvmlDeviceGetMigDeviceHandleByIndex(Dev d, unsigned index, Dev *out)
{
    ASK(d);
    (void)index;
    NEED(out);
    return d->mig_current ? NOT_FOUND : INVALID_ARGUMENT;
}

API nvmlDeviceGetComputeMode(Dev d, unsigned *out) { ASK(d); NEED(out); *out = 0; return OK; }
API nvmlDeviceGetCurrPcieLinkWidth(Dev d, unsigned *out) { ASK(d); NEED(out); *out = d->link_width; return OK; }
API nvmlDeviceGetMaxPcieLinkWidth(Dev d, unsigned *out) { ASK(d); NEED(out); *out = d->link_width_max; return OK; }
API nvmlDeviceGetCurrPcieLinkGeneration(Dev d, unsigned *out) { ASK(d); NEED(out); *out = d->link_gen; return OK; }
API nvmlDeviceGetMaxPcieLinkGeneration(Dev d, unsigned *out) { ASK(d); NEED(out); *out = d->link_gen_max; return OK; }
API nvmlDeviceGetVirtualizationMode(Dev d, unsigned *out) { ASK(d); NEED(out); *out = d->virt_mode; return OK; }

API nvmlDeviceGetNvLinkState(Dev d, unsigned link, unsigned *out)
{
    ASK(d);
    NEED(out);
    if (!d->nvlinks)
        return NOT_SUPPORTED;
    if (link >= d->nvlinks)
        return INVALID_ARGUMENT;
    *out = !(d->nvlink_down >> link & 1);
    return OK;
}

typedef struct { unsigned char cluster[16]; int status; unsigned clique; unsigned char state; } Fabric;
typedef struct { unsigned version; unsigned char cluster[16]; int status; unsigned clique; unsigned char state; unsigned health; } FabricV2;
typedef struct { FabricV2 v2; unsigned char summary; } FabricV3;

API nvmlDeviceGetGpuFabricInfo(Dev d, Fabric *out)
{
    ASK(d);
    NEED(out);
    memset(out, 0, sizeof *out);
    out->status = (int)d->fabric_status;
    out->state = (unsigned char)d->fabric_state;
    return OK;
}

#ifndef FAKE_R470
API nvmlDeviceGetGpuFabricInfoV(Dev d, FabricV2 *out)
{
    ASK(d);
    NEED(out);
    unsigned version = out->version;
    if (version != (sizeof(FabricV2) | 2u << 24) && version != (sizeof(FabricV3) | 3u << 24))
        return ARGUMENT_VERSION_MISMATCH;
    memset(out, 0, version & 0xffffff);
    out->version = version;
    out->status = (int)d->fabric_status;
    out->state = (unsigned char)d->fabric_state;
    return OK;
}
#endif

/* ---- errors of the memory --------------------------------------------------------------------------------------- */

API nvmlDeviceGetEccMode(Dev d, unsigned *current, unsigned *pending)
{
    ASK(d);
    NEED(current && pending);
    *current = *pending = d->ecc_enabled;
    return d->ecc_supported ? OK : NOT_SUPPORTED;
}

/* kind: 0 corrected, 1 uncorrected; counter: 0 volatile, 1 aggregate */
static int ecc(Dev d, unsigned kind, unsigned counter, unsigned long long *out)
{
    NEED(out && kind <= 1 && counter <= 1);
    if (!d->ecc_supported || !d->ecc_enabled)
        return NOT_SUPPORTED;
    *out = counter ? (kind ? d->ecc_agg_unc : d->ecc_agg_corr) : (kind ? d->ecc_vol_unc : d->ecc_vol_corr);
    return OK;
}

API nvmlDeviceGetTotalEccErrors(Dev d, unsigned kind, unsigned counter, unsigned long long *out)
{
    ASK(d);
    return ecc(d, kind, counter, out);
}

/* all errors of the fake are in DRAM (location 2, device memory) */
API nvmlDeviceGetMemoryErrorCounter(Dev d, unsigned kind, unsigned counter, unsigned location, unsigned long long *out)
{
    ASK(d);
    int rc = ecc(d, kind, counter, out);
    if (!rc && location != 2)
        *out = 0;
    return rc;
}

#ifndef FAKE_R470
typedef struct { unsigned version; unsigned long long counts[11]; unsigned over; } SramStatus;

API nvmlDeviceGetSramEccErrorStatus(Dev d, SramStatus *out)
{
    ASK(d);
    NEED(out);
    if (out->version != (sizeof *out | 1u << 24))
        return ARGUMENT_VERSION_MISMATCH;
    memset(out->counts, 0, sizeof out->counts);
    out->over = 0;
    return d->ecc_supported ? OK : NOT_SUPPORTED;
}
#endif

/* cause: 0 single bit, 1 double bit */
static int retired(Dev d, unsigned cause, unsigned *count, unsigned long long *pages, unsigned long long *times)
{
    unsigned n, room;
    NEED(count && cause <= 1);
    if (!d->retired_supported)
        return NOT_SUPPORTED;
    n = cause ? d->retired_dbe : d->retired_sbe;
    room = *count;
    *count = n;
    if (n && (!pages || room < n))
        return INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < n; i++) {
        pages[i] = 0x1000ull * (i + 1);
        if (times)
            times[i] = 1700000000ull + i;
    }
    return OK;
}

API nvmlDeviceGetRetiredPages(Dev d, unsigned cause, unsigned *count, unsigned long long *pages)
{
    ASK(d);
    return retired(d, cause, count, pages, NULL);
}

API nvmlDeviceGetRetiredPages_v2(Dev d, unsigned cause, unsigned *count, unsigned long long *pages, unsigned long long *times)
{
    ASK(d);
    return retired(d, cause, count, pages, times);
}

API nvmlDeviceGetRetiredPagesPendingStatus(Dev d, unsigned *out)
{
    ASK(d);
    NEED(out);
    *out = d->retired_pending;
    return d->retired_supported ? OK : NOT_SUPPORTED;
}

API nvmlDeviceGetRemappedRows(Dev d, unsigned *corr, unsigned *unc, unsigned *pending, unsigned *failed)
{
    ASK(d);
    NEED(corr && unc && pending && failed);
    *corr = d->remap_corr;
    *unc = d->remap_unc;
    *pending = d->remap_pending;
    *failed = d->remap_failed;
    return d->remap_supported ? OK : NOT_SUPPORTED;
}

API nvmlDeviceGetRowRemapperHistogram(Dev d, unsigned *out)
{
    ASK(d);
    NEED(out);
    memset(out, 0, 5 * sizeof *out);
    out[0] = 192; /* banks with all their spare rows */
    return d->remap_supported ? OK : NOT_SUPPORTED;
}

/* ---- field values ----------------------------------------------------------------------------------------------- */

typedef struct {
    unsigned id, scope;
    long long timestamp, latency;
    unsigned type;
    int rc;
    union { double d; unsigned ui; unsigned long ul; unsigned long long ull; } value;
} Field;

/* 226/227 gave way to 230, which came with R565; the old two answer "deprecated" since R570. */
static int field(Dev d, Field *f)
{
    char name[32];
    int code, branch = driver_branch();
    snprintf(name, sizeof name, "field:%u", f->id);
    f->type = 1;
    if (planted(d->errors, name, &code) && code)
        return code;
    if (f->id == 230) {
        f->value.ui = d->recovery_action;
        return branch >= 565 ? OK : NOT_SUPPORTED;
    }
    if (d->reset_required && f->id != 226 && f->id != 227)
        return RESET_REQUIRED;
    switch (f->id) {
    case 142: f->value.ui = d->remap_corr; return d->remap_supported ? OK : NOT_SUPPORTED;
    case 143: f->value.ui = d->remap_unc; return d->remap_supported ? OK : NOT_SUPPORTED;
    case 144: f->value.ui = d->remap_pending; return d->remap_supported ? OK : NOT_SUPPORTED;
    case 145: f->value.ui = d->remap_failed; return d->remap_supported ? OK : NOT_SUPPORTED;
    case 226: f->value.ui = d->recovery_action == 1; return branch >= 570 ? DEPRECATED : branch >= 535 ? OK : NOT_SUPPORTED;
    case 227: f->value.ui = d->recovery_action == 4; return branch >= 570 ? DEPRECATED : branch >= 535 ? OK : NOT_SUPPORTED;
    default: return NOT_SUPPORTED;
    }
}

/* The call succeeds although entries fail; a GPU that needs a reset still answers its recovery action. */
API nvmlDeviceGetFieldValues(Dev d, int count, Field *fields)
{
    int rc = ask(d, __func__);
    if (rc && rc != RESET_REQUIRED)
        return rc;
    NEED(fields && count > 0);
    for (int i = 0; i < count; i++) {
        fields[i].value.ull = 0;
        fields[i].rc = field(d, &fields[i]);
    }
    return OK;
}

/* ---- events ----------------------------------------------------------------------------------------------------- */

typedef struct { uint64_t seen, mask[FAKE_GPUS]; } EventSet;
typedef struct { Dev device; unsigned long long type, data; unsigned gi, ci; } EventData;

API nvmlDeviceGetSupportedEventTypes(Dev d, unsigned long long *out) { ASK(d); NEED(out); *out = 0xC01F; return OK; }

API nvmlEventSetCreate(EventSet **out)
{
    ASK_SYSTEM();
    NEED(out);
    *out = calloc(1, sizeof **out);
    (*out)->seen = S->event_seq;
    return OK;
}

API nvmlDeviceRegisterEvents(Dev d, unsigned long long types, EventSet *set)
{
    ASK(d);
    NEED(set);
    set->mask[d - S->gpus] |= types;
    return OK;
}

API nvmlEventSetWait_v2(EventSet *set, EventData *out, unsigned timeout_ms)
{
    unsigned waited = 0;
    ASK_SYSTEM();
    NEED(set && out);
    for (;; nap(), waited += 20) {
        while (set->seen < S->event_seq) {
            FakeEvent e = S->events[++set->seen % FAKE_EVENTS];
            if (e.seq != set->seen || e.gpu >= FAKE_GPUS || !(set->mask[e.gpu] & e.type))
                continue;
            *out = (EventData){&S->gpus[e.gpu], e.type, e.data, 0xffffffff, 0xffffffff};
            return OK;
        }
        if (waited >= timeout_ms)
            return TIMEOUT;
    }
}

API nvmlEventSetFree(EventSet *set) { free(set); return OK; }

/* ---- drift check ------------------------------------------------------------------------------------------------ */

#define AT(label, type, f) n += (size_t)snprintf(out + n, sizeof out - n, label "." #f " %zu %zu\n", offsetof(type, f), sizeof(((type *)0)->f));
#define END(label, type) n += (size_t)snprintf(out + n, sizeof out - n, label " 0 %zu\n", sizeof(type));
#define G(f) AT("gpu", FakeGpu, f)

/* One line per field, in order, so that a test can lay it beside what ctypes makes of state.py. */
__attribute__((visibility("default"))) const char *fakenvml_layout(void)
{
    static char out[16384];
    size_t n = 0;
    AT("error", FakeError, call) AT("error", FakeError, code) AT("error", FakeError, left) END("error", FakeError)
    AT("row", FakeRow, pid) AT("row", FakeRow, kind) AT("row", FakeRow, mib) AT("row", FakeRow, gi) AT("row", FakeRow, ci)
    AT("row", FakeRow, name) END("row", FakeRow)
    AT("event", FakeEvent, seq) AT("event", FakeEvent, type) AT("event", FakeEvent, data) AT("event", FakeEvent, gpu)
    AT("event", FakeEvent, spare) END("event", FakeEvent)
    G(present) G(minor) G(uuid) G(bus_id) G(name) G(serial) G(vbios) G(pci_device_id) G(pci_subsystem_id)
    G(total_mib) G(reserved_mib) G(idle_mib) G(leak_mib) G(bar1_total_mib) G(bar1_used_mib)
    G(leak_cleared_by) G(lost_cleared_by) G(hang_cleared_by) G(needs_reset_cleared_by) G(link_cleared_by) G(ghost_cleared_by)
    G(util_gpu) G(util_mem) G(ghost) G(persistence) G(recovery_action)
    G(link_width) G(link_width_max) G(link_gen) G(link_gen_max) G(mig_supported) G(mig_current) G(mig_pending)
    G(remap_supported) G(remap_corr) G(remap_unc) G(remap_pending) G(remap_failed)
    G(ecc_supported) G(ecc_enabled) G(retired_supported) G(retired_sbe) G(retired_dbe) G(retired_pending)
    G(ecc_vol_corr) G(ecc_vol_unc) G(ecc_agg_corr) G(ecc_agg_unc)
    G(nvlinks) G(nvlink_down) G(fabric_state) G(fabric_status) G(virt_mode) G(lost) G(reset_required) G(hang)
    G(reset_mode) G(reset_ms) G(resetting_pid) G(resets) G(wedges_on_restart) G(errors) G(rows) END("gpu", FakeGpu)
    AT("state", FakeState, magic) AT("state", FakeState, layout) AT("state", FakeState, size) AT("state", FakeState, generation)
    AT("state", FakeState, driver_loaded) AT("state", FakeState, init_hang) AT("state", FakeState, init_error)
    AT("state", FakeState, cuda_version) AT("state", FakeState, driver_version) AT("state", FakeState, nvml_version)
    AT("state", FakeState, event_seq) AT("state", FakeState, events) AT("state", FakeState, errors) AT("state", FakeState, gpus)
    END("state", FakeState)
    return out;
}
