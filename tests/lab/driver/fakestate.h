/* The law of this file: it mirrors LAYOUT in state.py field by field; any change here raises FAKE_LAYOUT there and here.
 *
 * One mmapped file holds everything the fake driver knows. The fake NVML, the fake CUDA library and the Python side
 * all look at the same bytes, so a change made by one is seen by the others at once. Only naturally aligned 32 and
 * 64 bit words and fixed, NUL-padded strings are used, so that C and ctypes agree without packing rules.
 */
#ifndef FAKESTATE_H
#define FAKESTATE_H

#include <stdint.h>

#define FAKE_MAGIC "FAKENVML"
#define FAKE_LAYOUT 1u
#define FAKE_GPUS 16
#define FAKE_ROWS 64
#define FAKE_ERRORS 24
#define FAKE_EVENTS 16

/* call: a public symbol with or without its _vN suffix, "field:230", "handle" (every lookup) or "*".
 * code 0 means "answers whatever else is wrong". left 0 means for ever, else the uses that remain. */
typedef struct {
    char call[56];
    int32_t code;
    uint32_t left;
} FakeError;

typedef struct {
    uint32_t pid;  /* 0: free row */
    uint32_t kind; /* 0 compute, 1 graphics, 2 MPS client */
    uint64_t mib;
    uint32_t gi, ci;
    char name[104];
} FakeRow;

typedef struct {
    uint64_t seq; /* 0: never written */
    uint64_t type, data;
    uint32_t gpu, spare;
} FakeEvent;

typedef struct {
    uint32_t present, minor;
    char uuid[80], bus_id[32], name[96], serial[32], vbios[32];
    uint32_t pci_device_id, pci_subsystem_id;
    uint64_t total_mib, reserved_mib, idle_mib, leak_mib, bar1_total_mib, bar1_used_mib;
    uint32_t leak_cleared_by, lost_cleared_by, hang_cleared_by, needs_reset_cleared_by, link_cleared_by, ghost_cleared_by;
    uint32_t util_gpu, util_mem, ghost; /* ghost 1: a context clears it; 2: a context does not */
    uint32_t persistence, recovery_action;
    uint32_t link_width, link_width_max, link_gen, link_gen_max;
    uint32_t mig_supported, mig_current, mig_pending;
    uint32_t remap_supported, remap_corr, remap_unc, remap_pending, remap_failed;
    uint32_t ecc_supported, ecc_enabled, retired_supported, retired_sbe, retired_dbe, retired_pending;
    uint64_t ecc_vol_corr, ecc_vol_unc, ecc_agg_corr, ecc_agg_unc;
    uint32_t nvlinks, nvlink_down, fabric_state, fabric_status, virt_mode;
    uint32_t lost, reset_required, hang; /* hang 1: getters block; 2: handle lookups block too */
    uint32_t reset_mode, reset_ms, resetting_pid, resets, wedges_on_restart;
    FakeError errors[FAKE_ERRORS];
    FakeRow rows[FAKE_ROWS];
} FakeGpu;

typedef struct {
    char magic[8];
    uint32_t layout, size;
    uint64_t generation;
    uint32_t driver_loaded, init_hang;
    int32_t init_error, cuda_version;
    char driver_version[80], nvml_version[80];
    uint64_t event_seq;
    FakeEvent events[FAKE_EVENTS];
    FakeError errors[FAKE_ERRORS];
    FakeGpu gpus[FAKE_GPUS];
} FakeState;

#endif
